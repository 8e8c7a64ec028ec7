"""Switches of the model around every mechanism: queries and keys of fixed length, and a gate of the output."""

import math
import re

import pytest
import torch
from omegaconf import OmegaConf

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.base import layers_of
from fourierformer.attention.switches import QKNorm
from fourierformer.config import ADDED_LATER
from fourierformer.errors import SetupError
from fourierformer.models.config import LMConfig, MaskedLMConfig, RecallConfig, Seq2SeqConfig, ViTConfig
from fourierformer.models.lm import WordLM
from fourierformer.models.mlm import MaskedLM
from fourierformer.models.recall import RecallModel
from fourierformer.models.seq2seq import EncoderDecoder
from fourierformer.models.vit import build_vit
from tests.helpers.command_line import CONFIGS
from tests.helpers.mechanisms import CHOICES, NAMES
from tests.helpers.one_by_one import one_by_one

EXACT = {"rtol": 1e-9, "atol": 1e-9}
KINDS = ["l2", "rms", "cosine"]
REFUSE_QK_NORM = {
    *("aft_conv", "aft_full", "aft_local", "aft_simple", "fnet", "hard_gaussian", "isab", "lsh", "luna"),
    *("none", "etc", "poolingformer", "rfa", "synthesizer"),
}
REFUSING = sorted(name for name in NAMES if attention.mechanism(name).qk_norm_ok is not True)
NORMED = [(n, c) for n, c in CHOICES if n not in REFUSING]


def built(name: str, causal: bool = True, *, bias: bool = False, length: int = 33, **switches) -> attention.Attention:
    """In float64, with weights far from 0, in evaluation."""
    torch.manual_seed(0)
    grid = (8, 4) if attention.mechanism(name).needs_grid else None
    geometry = Geometry(32, 4, length, causal, bias, grid=grid, prefix=1 if grid else 0, **switches)
    layer = attention.build(name, geometry).double().eval()
    if name != "fnet":
        torch.nn.init.normal_(layer.proj.weight)
    return layer


def tokens(n: int = 33, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, n, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def scale_queries_and_keys(layer: attention.Attention, factor: float) -> None:
    """Their rows come first in qkv, then those of the values."""
    of_values = layer.geometry.head_dim * getattr(layer, "kv_heads", layer.geometry.heads)
    with torch.no_grad():
        layer.qkv.weight[:-of_values] *= factor


@pytest.mark.parametrize(("name", "causal"), NORMED)
def test_the_length_of_projected_queries_and_keys_changes_nothing(name, causal):
    layer, x = built(name, causal, qk_norm="l2"), tokens()
    before = layer(x)
    scale_queries_and_keys(layer, 3.0)
    torch.testing.assert_close(layer(x), before, **EXACT)


def test_without_the_switch_it_changes_the_output():
    layer, x = built("softmax"), tokens()
    before = layer(x)
    scale_queries_and_keys(layer, 3.0)
    assert not torch.allclose(layer(x), before, rtol=0, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_of_normalised_queries_and_keys_is_its_formula(kind):
    layer, x = built("softmax", qk_norm=kind), tokens(9, batch=1)
    with torch.no_grad():
        for parameter in layer.qk_norm.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64) / 3)
    q, k, v = layer.project(x)
    found = layer.mix(*layer.arguments(x), x)
    for h in range(4):
        for i in range(9):
            logits = []
            for j in range(i + 1):
                a, b = q[0, h, i], k[0, h, j]
                cosine = (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()
                if kind == "l2":
                    logits.append(cosine / math.sqrt(8))
                elif kind == "cosine":
                    logits.append(cosine * layer.qk_norm.log_sharpness[h].exp())
                else:
                    a = a / (a.square().mean() + 1e-6).sqrt() * layer.qk_norm.query_gain
                    b = b / (b.square().mean() + 1e-6).sqrt() * layer.qk_norm.key_gain
                    logits.append((a * b).sum() / math.sqrt(8))
            expected = torch.stack(logits).softmax(0) @ v[0, h, : i + 1]
            torch.testing.assert_close(found[0, h, i], expected, **EXACT)


def test_a_sharpness_is_at_most_100():
    layer, x = built("softmax", qk_norm="cosine"), tokens()
    outputs = []
    for value in (100.0, 1000.0):
        torch.nn.init.constant_(layer.qk_norm.log_sharpness, math.log(value))
        outputs.append(layer(x))
    torch.testing.assert_close(*outputs, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_normalises_vectors_whose_length_it_cannot_hold(kind):
    """Here about 90,000; the largest number of float16 is 65,504. A power of two changes no digit."""
    norm = QKNorm(kind, heads=4, width=8).half()
    q, k = (torch.rand(2, 1, 4, 9, 8, generator=torch.Generator().manual_seed(0)) + 0.5).half()
    for long, expected in zip(norm(2**15 * q, 2**15 * k), norm(q, k), strict=True):
        torch.testing.assert_close(long, expected, rtol=2**-9, atol=1e-4)


@pytest.mark.parametrize("kind", ["rms", "cosine"])
def test_with_queries_and_keys_of_equal_length_gaussian_weights_are_those_of_softmax(kind):
    """|q - k|^2 = |q|^2 + |k|^2 - 2 q.k, of which |k|^2 is now the same for all keys."""
    gaussian, softmax = (built(name, qk_norm=kind)(tokens()) for name in ("gaussian", "softmax"))
    torch.testing.assert_close(gaussian, softmax, rtol=0, atol=2e-5 if kind == "rms" else 1e-9)  # 1e-6 in its root


def test_both_keys_of_mgk_and_no_gate_of_forgetting_are_normalised():
    x = tokens()
    _, k, _ = built("mgk", qk_norm="l2").arguments(x)
    torch.testing.assert_close(k.unflatten(-1, (2, 8)).norm(dim=-1), torch.ones(2, 4, 33, 2).double(), **EXACT)
    layer = built("forgetting", qk_norm="l2")
    assert torch.equal(layer.arguments(x)[1][..., 8], layer.project(x)[1][..., 8])


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_the_two_queries_and_keys_of_differential_is_normalised(kind):
    """So that its two maps have logits t cos(q1, k1) and t cos(q2, k2)."""
    lengths = {"l2": 1.0, "rms": 4**0.5, "cosine": (10 * 4**0.5) ** 0.5}  # 4 coordinates
    q, k, _ = built("differential", qk_norm=kind).arguments(tokens())
    for vectors in (q, k):
        norms = vectors.unflatten(-1, (2, 4)).norm(dim=-1)
        torch.testing.assert_close(norms, torch.full_like(norms, lengths[kind]), rtol=1e-3, atol=0)


def test_a_norm_of_its_own_refuses_another():
    with pytest.raises(SetupError, match="it divides queries and keys by their norms"):
        attention.build("fourier_linear", Geometry(32, 4, 9, True, qk_norm="cosine"), normalize="l2")
    attention.build("fourier_linear", Geometry(32, 4, 9, True, qk_norm="cosine"))


def test_forgetting_with_keys_of_one_coordinate_is_refused_because_its_gate_would_be_normalised():
    geometry = Geometry(dim=4, heads=4, length=8, causal=True, qk_norm="l2")
    with pytest.raises(SetupError, match=r"'forgetting' cannot normalise queries and keys: .* one coordinate"):
        attention.build("forgetting", geometry)


def test_queries_and_keys_of_zeros_have_finite_gradients():
    for kind in KINDS:
        layer, x = built("softmax", qk_norm=kind), torch.zeros(1, 5, 32, dtype=torch.float64, requires_grad=True)
        layer(x).square().sum().backward()
        assert x.grad.isfinite().all()


def test_mechanisms_that_do_not_compare_queries_with_keys_refuse_it():
    assert set(REFUSING) >= REFUSE_QK_NORM  # and those that somebody has added


@pytest.mark.parametrize("name", REFUSING)
def test_a_refusal_is_one_line_with_the_reason_and_a_way_out(name):
    reason = re.escape(attention.mechanism(name).qk_norm_ok)
    with pytest.raises(SetupError, match=rf"^attention '{name}' cannot .*: {reason}\. Set model.qk_norm=none$"):
        built(name, causal=(name, True) in CHOICES, qk_norm="rms")


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_gate_with_weights_of_0_halves_the_output(name, causal):
    x, plain = tokens(), built(name, causal)
    expected = plain(x) / 2
    for kind in ("head", "element"):
        layer = built(name, causal, gate=kind)
        layer.load_state_dict(plain.state_dict() | {"output_gate.weight": 0 * layer.output_gate.weight})
        torch.testing.assert_close(layer(x), expected, **EXACT)


@pytest.mark.parametrize("kind", ["head", "element"])
def test_a_gate_is_a_sigmoid_of_the_querys_input_times_its_mixed_values(kind):
    layer, x = built("softmax", bias=True, gate=kind), tokens(6, batch=1)
    mixed = layer.mix(*layer.project(x), x)[0]
    for i in range(6):
        logits = layer.output_gate.weight @ x[0, i] + layer.output_gate.bias
        channels = []
        for h in range(4):
            for d in range(8):
                logit = logits[h] if kind == "head" else logits[8 * h + d]
                channels.append(mixed[h, i, d] / (1 + (-logit).exp()))
        expected = layer.proj.weight @ torch.stack(channels) + layer.proj.bias
        torch.testing.assert_close(layer(x)[0, i], expected, **EXACT)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_with_switches_every_parameter_has_a_gradient_and_last_positions_equal_the_full_result(name, causal):
    layer, x = built(name, causal, qk_norm="none" if name in REFUSING else "rms", gate="element"), tokens()
    y = layer(x)
    torch.testing.assert_close(layer(x, last=5), y[:, -5:], **EXACT)
    layer.train()(x).square().sum().backward()
    for key in ("output_gate", "qk_norm"):
        for parameter in getattr(layer, key).parameters() if getattr(layer, key) else ():
            assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["taylor", "performer", "fast_weight", "band"])
def test_one_token_after_the_other_has_the_outputs_of_all_together(name, kind):
    layer, x = built(name, qk_norm=kind, gate="head"), tokens()
    torch.testing.assert_close(one_by_one(layer, x), layer(x), rtol=1e-7, atol=1e-7)


def test_memory_is_normalised_and_gated_by_the_querys_sequence():
    layer, x, memory = built("softmax", qk_norm="l2", gate="element"), tokens(), tokens(12)
    before = layer(x, memory)
    scale_queries_and_keys(layer, 3.0)
    torch.testing.assert_close(layer(x, memory), before, **EXACT)


SHAPE = {"name": "t", "dim": 32, "heads": 4}
TEXT = SHAPE | {"layers": 2, "inner": 16, "dropout": 0.0}
MODELS = {
    "language": lambda build, **s: WordLM(LMConfig(**TEXT, length=8, **s), 20, [], build),
    "masked": lambda build, **s: MaskedLM(MaskedLMConfig(**TEXT, length=8, mask_rate=0.2, **s), 20, [], build),
    "seq2seq": lambda build, **s: EncoderDecoder(
        Seq2SeqConfig(**TEXT, source_length=8, target_length=8, **s),
        20,
        dict.fromkeys(("encoder", "decoder", "cross"), build),
    ),
    "recall": lambda build, **s: RecallModel(RecallConfig(**SHAPE, layers=2, inner=0, **s), 20, 8, build),
    "vision": lambda build, **s: build_vit(
        ViTConfig(**SHAPE, depth=2, image_size=8, patch=4, mlp_ratio=1.0, drop_path=0.0, **s), 10, build
    ),
}


def softmax(geometry: Geometry) -> attention.Attention:
    return attention.build("softmax", geometry)


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("task", MODELS)
def test_a_model_gives_its_switches_to_every_attention_layer(task):
    plain, switched = MODELS[task](softmax), MODELS[task](softmax, qk_norm="cosine", gate="head")
    assert not [key for key in plain.state_dict() if "qk_norm" in key or "gate" in key]
    layers = layers_of(switched)
    assert all(layer.qk_norm.kind == "cosine" and layer.output_gate is not None for layer in layers)
    gates = 32 * 4 + 4 * (task == "vision")  # with a bias, as all projections of the vision model
    assert count(switched) - count(plain) == len(layers) * (4 + gates)


@pytest.mark.parametrize("task", MODELS)
def test_every_attention_layer_has_a_number_of_its_own(task):
    """On which its random numbers, and the share of `differential`, depend."""
    numbers = [layer.geometry.layer for layer in layers_of(MODELS[task](softmax))]
    assert sorted(numbers) == list(range(6 if task == "seq2seq" else 2))


def test_the_rotary_base_of_the_config_is_that_of_the_layers():
    keys = TEXT | {"position": "rotary", "rotary_base": 50.0}
    assert LMConfig(**keys, length=8).geometry().rotary_base == 50.0
    assert Seq2SeqConfig(**keys, source_length=8, target_length=8).geometry("decoder").rotary_base == 50.0


@pytest.mark.parametrize(
    ("switches", "added"),
    [
        ({"gate": "element"}, 128**2),
        ({"gate": "head"}, 128 * 8),
        ({"qk_norm": "rms"}, 2 * 16),
        ({"qk_norm": "cosine"}, 8),
        ({"qk_norm": "l2", "rotary_base": 1e4, "value_residual": 0.4}, 0),
    ],
)
def test_switches_add_parameters_of_their_own_and_no_state(switches, added):
    for name in ("softmax", "retnet"):
        plain, switched = (attention.build(name, Geometry(128, 8, 256, True, **s)) for s in ({}, switches))
        assert count(switched) - count(plain) == added
        assert switched.state_size(40) == plain.state_size(40)


@pytest.mark.parametrize(("switch", "value"), [("qk_norm", "l1"), ("gate", "channel")])
def test_a_value_that_a_switch_cannot_have_is_refused(switch, value):
    with pytest.raises(SetupError, match=f"model.{switch}='{value}': expected 'none' or "):
        Geometry(32, 4, 8, True, **{switch: value})


def test_the_values_of_the_config_are_those_that_earlier_runs_had():
    for path in (CONFIGS / "model/switches").glob("*.yaml"):
        for key, value in OmegaConf.load(path).items():
            assert key == "defaults" or ADDED_LATER[f"model.{key}"] == value
