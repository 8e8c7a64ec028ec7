"""The word language model against the paper's counts and independent formulas."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.models.adaptive import TiedAdaptiveSoftmax
from fourierformer.models.lm import LMConfig, WordLM, reversed_sinusoids

V, CUTOFFS = 267_735, [20_000, 40_000, 200_000]
SMALL = LMConfig(name="lm_small", layers=16, dim=128, heads=8, inner=2048, length=256, dropout=0.1)
MEDIUM = LMConfig(name="lm_medium", layers=16, dim=256, heads=8, inner=2048, length=384, dropout=0.1)
TINY = LMConfig(name="tiny", layers=2, dim=32, heads=4, inner=64, length=12, dropout=0.0)


def tiny(cutoffs=(), name="softmax", seed=0) -> WordLM:
    torch.manual_seed(seed)
    return WordLM(TINY, 50, list(cutoffs), partial(attention.build, name)).eval()


@pytest.mark.parametrize(
    ("config", "name", "count"),
    [
        (SMALL, "softmax", 44_018_394),
        (SMALL, "fourier", 44_018_410),
        (SMALL, "fourier_vector", 44_018_650),
        (MEDIUM, "softmax", 89_833_434),
        (MEDIUM, "fourier", 89_833_450),
        (MEDIUM, "fourier_vector", 89_833_946),
    ],
)
def test_parameter_counts_of_the_paper_models(config, name, count):
    with torch.device("meta"):
        model = WordLM(config, V, CUTOFFS, partial(attention.build, name))
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"norm_kind": "rms"}, -16 * 2 * 128),
        ({"norm_kind": "rms", "norm": "pre"}, -16 * 2 * 128 + 128),  # and the last norm
        ({"feed_forward": "swiglu"}, 16 * (3 * 128 * 1368 - 526_464)),
        ({"position": "learned"}, 256 * 128),
        ({"position": "rotary"}, 0),
        ({"qk_norm": "rms"}, 16 * 2 * 16),
        ({"gate": "element"}, 16 * 128 * 128),
    ],
)
def test_parameter_counts_of_switches(changes, more):
    with torch.device("meta"):
        model = WordLM(replace(SMALL, **changes), V, CUTOFFS, partial(attention.build, "softmax"))
    assert sum(p.numel() for p in model.parameters()) == 44_018_394 + more


def test_weights_of_rms_norms_begin_as_those_of_layer_norms():
    torch.manual_seed(0)
    config = replace(TINY, dim=1024, heads=4, inner=8, layers=1, norm_kind="rms")
    weight = WordLM(config, 5, [], partial(attention.build, "softmax")).layers[0].attention_norm.weight
    assert weight.mean().item() == pytest.approx(1, abs=3e-3)
    assert weight.std().item() == pytest.approx(0.02, abs=2e-3)


@pytest.mark.parametrize("cutoffs", [(), (10,), (10, 20, 40), (10, 50), (10, 49, 80)])
def test_adaptive_softmax_is_a_distribution_and_nll_its_logarithm(cutoffs):
    torch.manual_seed(0)
    output = TiedAdaptiveSoftmax(50, 16, cutoffs).double()
    for p in output.parameters():
        torch.nn.init.normal_(p)
    weight, hidden = torch.randn(50, 16).double(), torch.randn(7, 16).double()
    log_p = output.log_probabilities(hidden, weight).double()
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(7).double(), rtol=0, atol=1e-5)
    for target in range(50):
        nll = output.nll(hidden, torch.full((7,), target), weight)
        torch.testing.assert_close(nll.double(), -log_p[:, target], rtol=1e-5, atol=1e-5)


def test_adaptive_softmax_against_torch():
    """torch's own (untied, div_value 1 still projects) with its projections set to the identity and our weights."""
    torch.manual_seed(0)
    ours = TiedAdaptiveSoftmax(50, 16, [10, 30])
    for p in ours.parameters():
        torch.nn.init.normal_(p)
    weight = torch.randn(50, 16)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 50, [10, 30], div_value=1.0, head_bias=True)
    with torch.no_grad():
        ours.bias[10:] = 0  # theirs has no biases in the tails
        theirs.head.weight.copy_(torch.cat([weight[:10], ours.cluster_weight]))
        theirs.head.bias.copy_(torch.cat([ours.bias[:10], ours.cluster_bias]))
        for tail, (low, high) in zip(theirs.tail, [(10, 30), (30, 50)], strict=True):
            tail[0].weight.copy_(torch.eye(16))
            tail[1].weight.copy_(weight[low:high])
    hidden, targets = torch.randn(64, 16), torch.randint(0, 50, (64,))
    torch.testing.assert_close(ours.nll(hidden, targets, weight), -theirs(hidden, targets).output)


def test_rows_found_on_the_host_change_nothing():
    output = tiny((10, 30)).output
    hidden, targets, weight = torch.randn(20, 32), torch.randint(0, 50, (20,)), torch.randn(50, 32)
    expected = output.nll(hidden, targets, weight)
    assert torch.equal(output.nll(hidden, targets, weight, rare=output.rare_places(targets)), expected)


def test_positions_are_reversed_sin_then_cos():
    table = reversed_sinusoids(6, 8)
    for offset in range(6):
        for i in range(4):
            angle = (6 - 1 - offset) / 10000 ** (2 * i / 8)
            assert table[offset, i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[offset, 4 + i] == pytest.approx(math.cos(angle), abs=1e-6)
    assert torch.equal(table[-1], torch.tensor([0.0] * 4 + [1.0] * 4))  # the last token always has position 0


def test_positions_are_computed_with_the_digits_of_float32_where_half_precision_is_the_default():
    expected = reversed_sinusoids(400, 8).bfloat16()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = reversed_sinusoids(400, 8)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_the_scored_token_has_position_0_in_any_window():
    """Shorter inputs use the end of the table: a one-token input gets position 0."""
    model = tiny()
    seen = []
    model.dropout.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model.hidden(torch.tensor([[3]]))
    expected = model.embedding.weight[3] * math.sqrt(32) + reversed_sinusoids(1, 32)[0]
    torch.testing.assert_close(seen[0][0, 0], expected)


@pytest.mark.parametrize("name", ["softmax", "fourier", "gaussian"])
def test_last_position_only_equals_the_full_forward(name):
    model = tiny(name=name)
    tokens = torch.randint(0, 50, (3, 12))
    torch.testing.assert_close(model.hidden(tokens, last=1), model.hidden(tokens)[:, -1:], rtol=1e-4, atol=1e-5)
    targets = torch.randint(0, 50, (3, 12))
    full = model(tokens, targets).view(3, 12)
    torch.testing.assert_close(model(tokens, targets[:, -1:]), full[:, -1], rtol=1e-4, atol=1e-5)


def test_next_token_is_a_distribution_consistent_with_the_loss():
    model = tiny((10, 30))
    tokens = torch.randint(0, 50, (2, 12))
    log_p = model.next_token(tokens)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2), rtol=0, atol=1e-5)
    target = torch.tensor([[4], [45]])
    torch.testing.assert_close(model(tokens, target), -log_p.gather(1, target)[:, 0], rtol=1e-4, atol=1e-5)


def test_initialisation_is_the_authors():
    torch.manual_seed(0)
    model = WordLM(SMALL, 1000, [], partial(attention.build, "fourier"))
    for name, p in model.named_parameters():
        if name.endswith("radius"):
            assert p == 2.0
        elif name.endswith("norm.weight"):
            assert p.detach().mean() == pytest.approx(1.0, abs=0.01)
            assert p.detach().std() == pytest.approx(0.02, rel=0.3)
        elif p.dim() == 2:
            assert p.detach().std() == pytest.approx(0.02, rel=0.05), name
        else:
            assert not p.any(), name


def test_weights_of_clusters_begin_as_those_of_words():
    torch.manual_seed(0)
    output = WordLM(replace(TINY, dim=128), 1000, [100, 200, 400, 800], partial(attention.build, "softmax")).output
    assert output.cluster_weight.std().item() == pytest.approx(0.02, rel=0.15)
    assert not output.cluster_bias.any()


def test_biases_stand_where_the_paper_has_them():
    names = {n for n, _ in tiny().named_parameters() if n.startswith("layers.0.") and n.endswith("bias")}
    assert names == {
        "layers.0.attention_norm.bias",
        "layers.0.feed_forward.0.bias",
        "layers.0.feed_forward.3.bias",
        "layers.0.feed_forward_norm.bias",
    }


@pytest.mark.parametrize(
    "name", ["softmax", pytest.param("gaussian", marks=pytest.mark.full("compiles as softmax does"))]
)
def test_compiled_blocks_share_one_graph_and_change_nothing(name):
    from torch._dynamo.utils import counters

    plain, compiled = tiny(name=name), tiny(name=name)
    torch.compiler.reset()
    counters.clear()
    compiled.compile_blocks(backend="aot_eager", fullgraph=True)
    tokens = torch.randint(0, 50, (3, 12))
    torch.testing.assert_close(compiled.hidden(tokens), plain.hidden(tokens))
    assert counters["stats"]["unique_graphs"] == 1  # for two layers
    assert compiled.state_dict().keys() == plain.state_dict().keys()
