"""Attention Free Transformer against its definition, a softmax over all keys per channel, and facts about it."""

import math

import pytest
import torch
from torch import Tensor

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines import aft_weights
from fourierformer.attention.engines.aft_weights import (
    banded_causal_sums,
    block,
    causal_average,
    pooled,
    running,
    single,
)
from fourierformer.attention.mechanisms import aft, aft_learned
from fourierformer.errors import SetupError
from tests.helpers.one_by_one import one_by_one

DIM = 12
WINDOWED = ("aft_local", "aft_conv")
NAMES = ("aft_simple", "aft_full", *WINDOWED)
EXACT = {"rtol": 0, "atol": 1e-10}


def build(
    name: str, causal: bool, length: int = 150, grid: tuple[int, int] | None = None, prefix: int = 0, **knobs: object
) -> attention.Attention:
    """In float64 and evaluation mode, with weights, biases and kernels that are far from 0."""
    torch.manual_seed(0)
    knobs = ({"aft_heads": 4, "window": 5} if name == "aft_conv" else {}) | knobs
    geometry = Geometry(dim=DIM, heads=3, length=length, causal=causal, bias=True, grid=grid, prefix=prefix)
    layer = attention.build(name, geometry, **knobs).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.4)
    return layer


def tokens(n: int, batch: int = 2, seed: int = 1) -> Tensor:
    return 2 * torch.randn(batch, n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def position(layer: attention.Attention, token: int) -> tuple[int, int] | None:
    """Row and column of a token; None for a prefix token."""
    geometry = layer.geometry
    if geometry.grid is None or geometry.causal:
        return token, 0
    patch = token - geometry.prefix
    return divmod(patch, geometry.grid[1]) if patch >= 0 else None


def learned(layer: aft_learned.LearnedBiases, t: int, u: int) -> Tensor:
    if not layer.factorized:
        return layer.free.of_pair[t, u][None]
    return (layer.factors.of_query[t] @ layer.factors.of_key[u])[None]


def bias(layer: attention.Attention, t: int, u: int) -> Tensor:
    """w_tu of each head, from the definition: one number, or aft_heads of them."""
    if isinstance(layer, aft.AFTSimple):
        return torch.zeros(1).double()
    of_t, of_u = position(layer, t), position(layer, u)
    if isinstance(layer, aft_learned.AFTFull):
        return learned(layer, t, u)
    outside = of_t is None or of_u is None
    down, right = (0, 0) if outside else (of_u[0] - of_t[0], of_u[1] - of_t[1])
    if isinstance(layer, aft_learned.AFTLocal):
        outside = outside or max(abs(down), abs(right)) >= layer.window
        return learned(layer, t, u) * (not outside)
    taps = layer.taps
    window = taps.shape[1]
    row = down + (window - 1 if layer.geometry.causal else window // 2)
    column = right + taps.shape[2] // 2
    if outside or not (0 <= row < window and 0 <= column < taps.shape[2]):
        return torch.zeros(len(taps)).double()
    spread = taps.flatten(1).std(1, correction=0) + 1e-6
    return layer.gamma * (taps[:, row, column] - taps.flatten(1).mean(1)) / spread + layer.beta


def definition(layer: attention.Attention, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """proj(gate(Q) * sum_u softmax_u(K_u + w_tu) V_u), every channel by itself, over the keys to keep."""
    gated = layer.gate != "none"
    n, width = x.shape[1], layer.qkv.out_features - (1 + gated) * DIM
    q, k, v = layer.qkv(x).split((gated * DIM, width, DIM), dim=-1)
    w = torch.stack([torch.stack([bias(layer, t, u) for u in range(n)]) for t in range(n)])  # (n, n, H or 1)
    k = k.repeat_interleave(DIM // width, dim=-1)
    logits = k[:, None] + w.repeat_interleave(DIM // w.shape[-1], dim=-1)
    if layer.geometry.causal:
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(future[..., None], -math.inf)
    if keep is not None:
        logits = logits.masked_fill(~keep[:, None, :, None], -math.inf)
    average = torch.einsum("btuc,buc->btc", logits.softmax(2), v)
    gates = {"sigmoid": lambda: 1 / (1 + (-q).exp()), "relu": lambda: q.clamp_min(0), "tanh": q.tanh}
    return layer.proj(gates[layer.gate]() * average if gated else average)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 8, 27])
def test_is_a_softmax_over_all_keys_per_channel(name, causal, n, monkeypatch):
    monkeypatch.setattr(aft_weights, "CHUNK", 8)  # 27 tokens are three chunks and a part of one
    layer, x = build(name, causal), tokens(n)
    torch.testing.assert_close(layer(x), definition(layer, x), **EXACT)


@pytest.mark.parametrize(("causal", "grid"), [(True, None), (False, None), (False, (6, 5))])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dense", [0, 256])
def test_padding_leaves_positions_as_they_are(name, causal, grid, dense, monkeypatch):
    """Whichever way the sums are computed. The first and the sixth key stay, and with them a key for every query."""
    monkeypatch.setattr(aft, "DENSE", dense)
    monkeypatch.setattr(aft, "CHUNK", 4)
    window = {"window": 3} if name in WINDOWED else {}
    layer, x = build(name, causal, length=31, grid=grid, prefix=1 if grid else 0, **window), tokens(31)
    keep = torch.rand(2, 31, generator=torch.Generator().manual_seed(0)) < 0.4
    keep[:, 0] = keep[:, 5] = True
    torch.testing.assert_close(layer(x, keep=keep)[keep], definition(layer, x, keep)[keep], **EXACT)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 9, 20])
@pytest.mark.parametrize("name", NAMES)
def test_is_a_softmax_over_all_keys_on_a_grid(name, prefix, n):
    window = {"window": 3} if name in WINDOWED else {}
    layer, x = build(name, causal=False, length=20 + prefix, grid=(4, 5), prefix=prefix, **window), tokens(n + prefix)
    torch.testing.assert_close(layer(x), definition(layer, x), **EXACT)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("prefix", [0, 1])
def test_a_window_larger_than_the_grid(name, prefix):
    layer = build(name, causal=False, length=4 + prefix, grid=(2, 2), prefix=prefix, window=11)
    x = tokens(4 + prefix)
    torch.testing.assert_close(layer(x), definition(layer, x), **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_of_all_tokens_is_full_and_of_none_is_simple(causal):
    full, simple, x = build("aft_full", causal, length=70), build("aft_simple", causal, length=70), tokens(70)
    for window, expected in ((70, full), (0, simple)):
        local = build("aft_local", causal, length=70, window=window)
        local.load_state_dict(full.state_dict())
        simple.load_state_dict({k: v for k, v in full.state_dict().items() if "factors" not in k})
        torch.testing.assert_close(local(x), expected(x), **EXACT)
    assert (full(x) - simple(x)).abs().max() > 0.01


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 4, 9])
@pytest.mark.parametrize("name", WINDOWED)
def test_long_sequences_give_what_short_ones_give(name, causal, window, monkeypatch):
    """More than DENSE tokens: sums over chunks instead of all biases. 150 tokens are no multiple of a chunk of 8."""
    if name == "aft_conv":
        window += 1 - window % 2  # odd
    layer, x = build(name, causal, window=window), tokens(150).requires_grad_()
    dense = layer(x)
    of_dense = torch.autograd.grad(dense.square().sum(), [x, *layer.parameters()])
    monkeypatch.setattr(aft, "DENSE", 16)
    monkeypatch.setattr(aft, "CHUNK", 8)
    monkeypatch.setattr(layer, "biases", None)
    banded = layer(x)
    torch.testing.assert_close(banded, dense, **EXACT)
    of_banded = torch.autograd.grad(banded.square().sum(), [x, *layer.parameters()])
    for ours, expected in zip(of_banded, of_dense, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("n", [84, 80])
@pytest.mark.parametrize("name", WINDOWED)
def test_large_grids_give_what_small_ones_give(name, n, prefix, monkeypatch):
    layer = build(name, causal=False, length=84 + prefix, grid=(12, 7), prefix=prefix, window=3)
    x = tokens(n + prefix)
    dense = layer(x)
    monkeypatch.setattr(aft, "DENSE", 16)
    monkeypatch.setattr(layer, "biases", None)
    torch.testing.assert_close(layer(x), dense, **EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["aft_simple", *WINDOWED])
def test_sixteen_thousand_tokens(name, causal, monkeypatch):
    """All biases would be 2^28 numbers; the last token of the sequence is compared with the definition."""
    n = 16384
    layer, x = build(name, causal, length=n, **({"bias_dim": 2} if name == "aft_local" else {})), tokens(n, batch=1)
    monkeypatch.setattr(layer, "biases", None, raising=False)
    with torch.no_grad():
        y = layer(x, last=1)[0, 0]
        width = layer.qkv.out_features - 2 * DIM
        q, k, v = layer.qkv(x)[0].split((DIM, width, DIM), dim=-1)
        near = torch.stack([bias(layer, n - 1, u) for u in range(n - 40, n)])
        w = torch.cat([torch.zeros(n - 40, near.shape[1]), near])
        weights = (k.repeat_interleave(DIM // width, -1) + w.repeat_interleave(DIM // w.shape[-1], -1)).softmax(0)
        torch.testing.assert_close(y, layer.proj(q[-1].sigmoid() * (weights * v).sum(0)), **EXACT)


def ramp(n: int, rising: bool) -> Tensor:
    """Keys from -300 to 300 or back: exp over- and underflows, whatever one number is taken off."""
    k = torch.linspace(-300, 300, n)[:, None] + torch.randn(2, 1, n, 3, generator=torch.Generator().manual_seed(2))
    return k if rising else k.flip(-2)


def banded_of_ramp(w: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The bias matrix `w` cut down to chunks of 8 and the chunk before."""
    chunks = w.unflatten(-1, (-1, 8)).unflatten(-3, (-1, 8)).transpose(-3, -2)[0]
    rows = range(len(chunks))

    def of(offset: int) -> Tensor:
        return torch.stack([chunks[i, max(i + offset, 0)] for i in rows])[None]

    return banded_causal_sums(of, k.unflatten(-2, (-1, 8)), v.unflatten(-2, (-1, 8))).average.flatten(-3, -2)


FORMS = {
    "causal": (True, causal_average),
    "banded": (True, banded_of_ramp),
    "running": (True, lambda w, k, v: running(single(k, v)).average),
    "full": (False, lambda w, k, v: block(w, k, v).average),
    "pooled": (False, lambda w, k, v: pooled(k, v).average.expand_as(v)),
}


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_keys_of_any_size_in_float32(form, rising):
    """Forward and backward against the definition in float64; rows of exp(k - max k) would be 0 / 0."""
    causal, average = FORMS[form]
    n = 72
    k, noise = ramp(n, rising), torch.Generator().manual_seed(3)
    v, g = torch.randn(2, 1, n, 3, generator=noise), torch.randn(2, 1, n, 3, generator=noise)
    chunk = torch.arange(n) // 8
    biased = torch.full((n, n), form not in ("running", "pooled"))
    if form == "banded":  # no biases beyond the chunk before
        biased = chunk[:, None] - chunk < 2
    w = torch.randn(1, n, n, generator=noise) * biased
    k, v, w = (t.requires_grad_() for t in (k, v, w))
    y = average(w, k, v)
    (y * g).sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (w, k, v)]
    logits = exact[1][:, :, None] + exact[0][:, :, :, None]
    if causal:
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1)[..., None], -math.inf)
    expected = torch.einsum("bhtuc,bhuc->bhtc", logits.softmax(3), exact[2])
    (expected * g).sum().backward()
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(k.grad.double(), exact[1].grad, rtol=0, atol=1e-4)
    torch.testing.assert_close(v.grad.double(), exact[2].grad, rtol=0, atol=1e-4)
    if biased.any():
        torch.testing.assert_close(w.grad.double(), exact[0].grad * biased, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_running_sums_of_any_number_of_tokens(n):
    k, v = (torch.randn(2, 3, n, 4, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (4, 5))
    expected = (k.exp() * v).cumsum(-2) / k.exp().cumsum(-2)
    torch.testing.assert_close(running(single(k, v)).average, expected, **EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_constant_added_to_the_keys_of_a_channel_cancels(name, causal):
    layer, x = build(name, causal), tokens(33)
    q, k, v = layer.project(x)
    shift = 50 * torch.randn(k[:, :, :1].shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    torch.testing.assert_close(layer.mix(q, k + shift, v, x), layer.mix(q, k, v, x), **EXACT)


@pytest.mark.parametrize("dense", [16, 1024])
@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_reaches_a_token_from_earlier_outputs(name, dense, monkeypatch):
    monkeypatch.setattr(aft, "DENSE", dense)
    monkeypatch.setattr(aft, "CHUNK", 8)
    layer, x = build(name, causal=True, **({"window": 5} if name in WINDOWED else {})), tokens(60).requires_grad_()
    for t in (0, 7, 8, 31, 58):
        (grad,) = torch.autograd.grad(layer(x)[:, t].square().sum(), x)
        assert (grad[:, t + 1 :] == 0).all()
        assert grad[:, : t + 1].abs().amax(-1).min() > 1e-8  # and all tokens so far take part


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("aft_simple", {}),
        ("aft_local", {"window": 0}),
        ("aft_local", {"window": 1}),
        ("aft_local", {"window": 6}),
        ("aft_local", {"window": 99}),
        ("aft_conv", {"window": 1}),
        ("aft_conv", {"window": 4}),
        ("aft_conv", {"window": 99}),
    ],
)
def test_decoding_gives_what_forward_gives(name, knobs):
    layer, x = build(name, causal=True, length=40, **knobs), tokens(40)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_decoding_survives_keys_of_any_size():
    layer = build("aft_local", causal=True, length=40, window=3).float()
    k = ramp(40, rising=False)[..., :1].expand(-1, 3, -1, 4)
    state, q = layer.start(batch=2), torch.zeros(2, 3, 1, 4)
    for t in range(40):
        y, state = layer.mix_step(q, k[:, :, t : t + 1], torch.full_like(q, 3.0), q, state)
        torch.testing.assert_close(y, torch.full_like(q, 1.5))  # sigmoid(0) = 1/2


@pytest.mark.parametrize("name", NAMES)
def test_where_there_is_no_constant_state(name):
    assert build(name, causal=False).start(batch=2) is None
    assert (build(name, causal=True).start(batch=2) is None) == (name == "aft_full")


def test_biases_start_as_the_knob_says():
    """w = a . b with 64 products of std 0.2^2: std 0.2^2 sqrt(64) = 0.32."""
    torch.manual_seed(0)
    geometry = Geometry(dim=DIM, heads=3, length=200, causal=True)
    layer = attention.build("aft_full", geometry, bias_dim=64, bias_init_std=0.2)
    assert sum(p.numel() for p in layer.factors.parameters()) == 2 * 200 * 64
    assert layer.factors.of_query.std().item() == pytest.approx(0.2, rel=0.03)
    assert layer.biases(200).std().item() == pytest.approx(0.32, rel=0.05)


@pytest.mark.parametrize("name", ["aft_full", "aft_local"])
def test_the_models_initialisation_leaves_the_factors_alone(name):
    layer = attention.build(name, Geometry(dim=DIM, heads=3, length=20, causal=True))
    assert not [m for m in layer.factors.modules() if isinstance(m, torch.nn.Linear | torch.nn.Embedding)]


# -- the ablations of the paper ---------------------------------------------------------------------------------------


def test_defaults_are_the_papers():
    """A sigmoid gate and factorised biases (equation 2 and section 3 of arXiv 2105.14103)."""
    for name in NAMES:
        knobs = {key: parameter.default for key, parameter in attention.knobs(name).items()}
        assert knobs["gate"] == "sigmoid"
        assert knobs.get("factorized", True) is True


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("gate", ["relu", "tanh", "none"])
@pytest.mark.parametrize("name", NAMES)
def test_other_gates(name, gate, causal):
    layer, x = build(name, causal, gate=gate), tokens(9)
    torch.testing.assert_close(layer(x), definition(layer, x), **EXACT)
    torch.testing.assert_close(layer(x, last=2), layer(x)[:, -2:], **EXACT)
    if causal and name != "aft_full":
        torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


@pytest.mark.parametrize(("causal", "grid"), [(True, None), (False, None), (False, (6, 5))])
@pytest.mark.parametrize("dense", [0, 256])
@pytest.mark.parametrize("name", ["aft_full", "aft_local"])
def test_free_biases(name, dense, causal, grid, monkeypatch):
    """One number for every pair of positions, however the sums are computed."""
    monkeypatch.setattr(aft, "DENSE", dense)
    monkeypatch.setattr(aft, "CHUNK", 4)
    window = {"window": 3} if name == "aft_local" else {}
    layer = build(name, causal, length=31, grid=grid, prefix=1 if grid else 0, factorized=False, **window)
    x = tokens(31)
    torch.testing.assert_close(layer(x), definition(layer, x), **EXACT)
    if causal and name == "aft_local":
        torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_free_biases_need_as_many_parameters_as_published():
    """Table 3 there, CIFAR-10: 9.6 million parameters per layer with free biases, 0.6 with factors. T = 3,072, dim 256,
    factors of 64: 4 x 256^2 + 3,072^2 = 9,699,328 and 4 x 256^2 + 2 x 3,072 x 64 = 655,360."""
    geometry = Geometry(dim=256, heads=2, length=3072, causal=True)
    with torch.device("meta"):
        for factorized, expected in ((False, 9_699_328), (True, 655_360)):
            layer = attention.build("aft_local", geometry, bias_dim=64, window=256, factorized=factorized)
            assert sum(p.numel() for p in layer.parameters()) == expected


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("aft_simple", {"gate": "sigmiod"}, "gate='sigmiod': expected 'sigmoid' or 'relu' or 'tanh' or 'none'"),
        ("aft_full", {"factorized": False, "bias_init_std": -1.0}, "bias_init_std=-1.0: must be at least 0"),
        ("aft_full", {"bias_dim": 0}, "bias_dim=0: must be at least 1"),
        ("aft_local", {"bias_init_std": 0.0}, "bias_init_std=0.0: must be more than 0"),
        ("aft_local", {"window": -1}, "window=-1: must be at least 0"),
    ],
)
def test_impossible_knobs_are_refused(name, knobs, message):
    with pytest.raises(SetupError, match=message):
        attention.build(name, Geometry(dim=DIM, heads=3, length=20, causal=True), **knobs)
