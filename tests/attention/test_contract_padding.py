"""Padding and other sequences, over every mechanism that has them; the others refuse with their reason."""

import re

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.sparse import SparseAttention
from fourierformer.errors import SetupError
from tests.helpers.mechanisms import CHOICES, NAMES, built, has_maps, tokens

PADDING = [(n, c) for n, c in CHOICES if n in attention.available(causal=c, padding=True)]
CROSS = [(n, c) for n, c in CHOICES if n in attention.available(causal=c, cross=True)]
# Their weights depend on positions, so leaving a key out in the middle is not the same as taking it out.
DENSE_WITH_POSITIONS = {
    *("aft_full", "aft_local", "aft_conv", "alibi", "adaptive_span", "local_gaussian", "synthesizer"),
    "hard_gaussian",
    *("linformer", "mca", "poolingformer", "routing", "sac", "sinkhorn"),
    *("delta_net", "gated_delta_net"),  # their convolution
}
WITH_POSITIONS = DENSE_WITH_POSITIONS | {
    name for name in NAMES if issubclass(attention.mechanism(name), SparseAttention)
}
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def in_float64(name: str, causal: bool) -> attention.Attention:
    """In evaluation, where mechanisms watch what their diagnostics tell; with biases, so that the keys and values of
    padding are not 0."""
    return built(name, causal, length=40, bias=True).double().eval()


def results(layer, x, memory=None, *, rows=slice(None), **options) -> dict[str, torch.Tensor]:
    """The output at `rows` of the positions, and the gradients of its squared sum in all inputs and parameters."""
    leaves = {"x": x.clone().requires_grad_()}
    if memory is not None:
        leaves["memory"] = memory.clone().requires_grad_()
    y = layer(*leaves.values(), **options)[:, rows]
    leaves |= dict(layer.named_parameters())
    gradients = torch.autograd.grad(y.square().sum(), list(leaves.values()), allow_unused=True)
    return {"y": y.detach()} | dict(zip(leaves, gradients, strict=True))


def assert_equal(actual, expected, **tolerance) -> None:
    for name, value in expected.items():
        if value is None:  # a parameter that has no part in it
            assert actual[name] is None or not actual[name].any(), name
        else:
            torch.testing.assert_close(actual[name], value, msg=lambda text, n=name: f"{n}: {text}", **tolerance)


def kept(batch: int, length: int, first: int = 0, end: int | None = None) -> torch.Tensor:
    keep = torch.zeros(batch, length, dtype=torch.bool)
    keep[:, first:end] = True
    return keep


@pytest.mark.filterwarnings("ignore:attention=fourier_linear")
@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_padding_at_the_end_is_as_good_as_cut_off(name, causal):
    layer = in_float64(name, causal)
    x = tokens(33).double()
    for n in (1, 21):
        layer.train().eval()  # diagnostics begin anew
        cut = results(layer, x[:, :n])
        diagnostics = layer.diagnostics()
        padded = results(layer, x, keep=kept(2, 33, end=n), rows=slice(n))
        assert not padded["x"][:, n:].any()
        padded["x"] = padded["x"][:, :n]
        assert_equal(padded, cut, **EXACT)
        if n > 1:  # a single query is not watched
            assert layer.diagnostics() == pytest.approx(diagnostics)


@pytest.mark.parametrize(("name", "causal"), [(n, c) for n, c in PADDING if n not in WITH_POSITIONS])
def test_padding_anywhere_is_as_good_as_taken_out(name, causal):
    layer = in_float64(name, causal)
    x = tokens(33).double()
    keep = torch.rand(2, 33, generator=torch.Generator().manual_seed(3)) < 0.6
    assert keep.sum(1).unique().numel() == 2  # rows of their own
    padded = layer(x, keep=keep)
    for row in range(2):
        torch.testing.assert_close(padded[row, keep[row]], layer(x[row, keep[row]][None])[0], **EXACT)


VARIANTS = [
    *((n, c, {"form": "chunk"}) for n, c in PADDING if "form" in attention.knobs(n) and n not in WITH_POSITIONS),
    *((n, True, {"conv": 0, "form": f}) for n in ("delta_net", "gated_delta_net") for f in ("parallel", "chunk")),
    *(("fourier_linear", c, {"method": m}) for c in (True, False) for m in ("rff", "gauss")),
    *(("performer", c, {"kind": "hyperbolic"}) for c in (True, False)),
    *(("gaussian", c, {"normalize_keys": True}) for c in (True, False)),
    *(("fourier", c, {"eps": 0.0}) for c in (True, False)),
    *(("fast_weight", True, {"feature": f}) for f in ("elu", "performer")),
    ("rfa", True, {"gate": False}),
]


@pytest.mark.filterwarnings("ignore:attention=fourier_linear")
@pytest.mark.parametrize(("name", "causal", "knobs"), VARIANTS)
def test_padding_anywhere_with_other_knobs(name, causal, knobs):
    """150 tokens: several chunks."""
    torch.manual_seed(0)
    geometry = Geometry(dim=32, heads=4, length=150, causal=causal, bias=True)
    layer = attention.build(name, geometry, **knobs).double().eval()
    x = tokens(150, batch=1).double()
    keep = torch.rand(1, 150, generator=torch.Generator().manual_seed(3)) < 0.6
    expected, diagnostics = layer(x[keep][None]), layer.diagnostics()
    torch.testing.assert_close(layer(x, keep=keep)[keep], expected[0], **EXACT)
    assert layer.diagnostics() == pytest.approx(diagnostics)


@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_what_padding_holds_changes_nothing(name, causal):
    layer = in_float64(name, causal)
    x = tokens(33).double()
    keep = torch.rand(2, 33, generator=torch.Generator().manual_seed(3)) < 0.6

    def of_kept_tokens(x):
        all_results = results(layer, x, keep=keep)
        leaf = x.clone().requires_grad_()
        y = layer(leaf, keep=keep)[keep]
        (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
        return all_results | {"kept": y.detach(), "gradient": gradient}

    expected = of_kept_tokens(x)
    for garbage in (1e4, float("nan")):
        actual = of_kept_tokens(x.masked_fill(~keep[..., None], garbage))
        assert all(value is None or value.isfinite().all() for value in actual.values())
        assert not actual["gradient"][~keep].any()
        assert_equal(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_keeping_everything_is_the_same_as_no_padding(name, causal):
    layer = in_float64(name, causal)
    x = tokens(33).double()
    assert_equal(results(layer, x, keep=kept(2, 33)), results(layer, x), **EXACT)


@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_queries_without_a_key_get_zeros(name, causal):
    """The second sequence is nothing but padding; of the first a causal query sees nothing before token 5. What comes
    out is what the projection makes of zeros."""
    layer = in_float64(name, causal)
    x = tokens(33).double()
    keep = kept(2, 33, first=5)
    keep[1] = False
    actual = results(layer, x, keep=keep)
    assert all(value is None or value.isfinite().all() for value in actual.values())
    of_zeros = layer.proj.bias.detach()
    assert (actual["y"][1] == of_zeros).all()
    assert (actual["y"][0, : 5 if causal else 0] == of_zeros).all()
    assert name == "none" or (actual["y"][0, 5:] != of_zeros).any(-1).all()
    assert not actual["x"][1].any()


@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_last_positions_with_padding_equal_the_full_result(name, causal):
    layer = in_float64(name, causal)
    x = tokens(33).double()
    keep = kept(2, 33, first=3)  # at the start, so that the last positions are tokens
    keep[1, 20:24] = False
    y = layer(x, keep=keep)
    for last in (1, 5):
        torch.testing.assert_close(layer(x, keep=keep, last=last), y[:, -last:], **EXACT)


@pytest.mark.parametrize(("name", "causal"), PADDING)
def test_padding_under_autocast_and_in_training_stays_finite(name, causal):
    layer = built(name, causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(tokens(33), keep=kept(2, 33, end=20))
    (y.float().sum() + layer.auxiliary_loss(torch.ones(2)).sum()).backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


# -- another sequence --------------------------------------------------------------------------------------------------


def cross_layer(name: str, causal: bool) -> attention.Attention:
    """Where the usual choice of knobs cannot: with those that can."""
    layer = in_float64(name, causal)
    if layer.cross_ok is True:
        return layer
    assert name == "rfa", f"{name} says that it can attend to another sequence"
    torch.manual_seed(0)
    return attention.build(name, layer.geometry, gate=False).double().eval()


@pytest.mark.parametrize(("name", "causal"), CROSS)
def test_another_sequence_is_attended_to_query_by_query(name, causal):
    """All of it, by every query alone; the same as a bidirectional layer gives for the last of one long sequence whose
    other keys are padding."""
    layer, joint = cross_layer(name, causal), cross_layer(name, causal=False)
    joint.load_state_dict(layer.state_dict())
    for queries, keys in ((4, 13), (5, 4), (1, 7), (7, 1)):
        x, memory = tokens(queries).double(), tokens(keys, seed=2).double()
        y = layer(x, memory)
        assert y.shape == x.shape
        for i in range(queries):
            torch.testing.assert_close(layer(x[:, i : i + 1], memory)[:, 0], y[:, i], **EXACT)
        if name in attention.available(causal=False, padding=True):
            both = torch.cat([memory, x], 1)
            mixed = joint.mix(*joint.project(both), both, keep=kept(2, keys + queries, end=keys))[:, :, keys:]
            torch.testing.assert_close(y, joint.proj(mixed.transpose(1, 2).flatten(2)), **EXACT)


@pytest.mark.parametrize("name", [name for name, causal in CROSS if not causal and has_maps(name)])
def test_another_sequence_is_weighed_as_the_maps_say(name):
    layer = cross_layer(name, causal=False)
    for queries, keys in ((4, 13), (13, 4)):
        x, memory = 3 * tokens(queries).double(), 3 * tokens(keys, seed=2).double()
        q, k, v = layer.project(x, memory)
        expected = (layer.maps(q, k) @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(layer(x, memory), layer.proj(expected), **EXACT)


@pytest.mark.parametrize("name", [name for name, causal in CROSS if not causal])
def test_a_sequence_attends_to_itself_as_to_another(name):
    layer = cross_layer(name, causal=False)
    x = tokens(33).double()
    torch.testing.assert_close(layer(x, x), layer(x), **EXACT)
    torch.testing.assert_close(layer(x, x, last=5), layer(x)[:, -5:], **EXACT)


@pytest.mark.parametrize(("name", "causal"), [(n, c) for n, c in CROSS if (n, c) in PADDING])
def test_padding_of_another_sequence(name, causal):
    layer = cross_layer(name, causal)
    x, memory = tokens(6).double(), tokens(15, seed=2).double()
    expected = results(layer, x, memory[:, :11])
    for garbage in (1e4, float("nan")):
        memory[:, 11:] = garbage
        actual = results(layer, x, memory, keep=kept(2, 15, end=11))
        assert not actual["memory"][:, 11:].any()
        actual["memory"] = actual["memory"][:, :11]
        assert_equal(actual, expected, **EXACT)
    nothing = results(layer, x, memory, keep=kept(2, 15, end=0))
    assert (nothing["y"] == layer.proj.bias).all()
    assert all(value is None or value.isfinite().all() for value in nothing.values())


@pytest.mark.parametrize(("name", "causal"), CROSS)
def test_queries_of_a_sequence_without_tokens_get_zeros(name, causal):
    layer, x, nothing = cross_layer(name, causal), tokens(6).double(), tokens(0).double()
    assert (layer(x, nothing) == layer.proj.bias).all()
    assert layer(x, nothing).shape == x.shape
    assert layer(x, nothing, last=2).shape == x[:, -2:].shape


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_other_sequences_and_padding_are_refused_with_the_reason(name, causal):
    layer, x, keep = built(name, causal), tokens(5), kept(2, 5)
    for verdict, what, arguments in (
        (layer.cross_ok, "attend to another sequence", {"memory": x}),
        (layer.padding_ok, "ignore padding", {"keep": keep}),
    ):
        if verdict is True:
            assert layer(x, **arguments).shape == x.shape
            continue
        assert len(verdict.split()) > 3, "a reason, not a word"
        with pytest.raises(SetupError, match=f"{type(layer).__name__} attention cannot {what}: {re.escape(verdict)}"):
            layer(x, **arguments)


def test_a_new_class_refuses_both_until_it_says_otherwise():
    layer = attention.Attention(Geometry(dim=32, heads=4, length=33, causal=True))
    with pytest.raises(SetupError, match="cannot attend to another sequence: it was written for"):
        layer(tokens(5), tokens(5))
    with pytest.raises(SetupError, match="cannot ignore padding: it was written without"):
        layer(tokens(5), keep=kept(2, 5))


@pytest.mark.parametrize(
    "keep", [torch.ones(2, 5), kept(2, 4), kept(1, 5), kept(2, 5)[..., None]], ids=["float", "short", "batch", "3d"]
)
def test_keep_must_be_a_bool_for_every_token(keep):
    with pytest.raises(ValueError, match=r"keep must be a bool tensor \(batch, keys\) = \(2, 5\)"):
        built("softmax", True)(tokens(5), keep=keep)


@pytest.mark.parametrize("memory", [tokens(5)[..., :16], tokens(5, batch=3), tokens(5)[0]], ids=["dim", "batch", "2d"])
def test_memory_must_have_the_batch_and_the_width_of_x(memory):
    with pytest.raises(ValueError, match=r"memory must be \(batch, keys, dim\)"):
        built("softmax", True)(tokens(5), memory)


def test_who_can_attend_to_another_sequence_and_ignore_padding():
    cannot = {"aft_conv", "aft_full", "aft_local", "fast_weight", "delta_net", "gated_delta_net", "retnet"}
    assert cannot.isdisjoint(attention.available(cross=True))
    can = {"softmax", "gaussian", "fourier", "fourier_linear", "performer_trig", "rfa", "taylor", "dpfp", "aft_simple"}
    assert can <= set(attention.available(causal=True, cross=True, padding=True))
    assert can | cannot <= set(attention.available(padding=True))
