"""AFT-conv: its own projections, its kernel, and the paper's formula with a convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.aft_conv import toeplitz
from fourierformer.errors import SetupError
from fourierformer.marks import marks_of

EXACT = {"rtol": 0, "atol": 1e-10}
GRID = (6, 5)


def build(causal: bool, grid: tuple[int, int] | None = None, window: int = 3, trained: bool = True):
    torch.manual_seed(0)
    geometry = Geometry(dim=12, heads=3, length=30, causal=causal, grid=grid)
    layer = attention.build("aft_conv", geometry, aft_heads=4, window=window).double().eval()
    if trained:
        torch.nn.init.normal_(layer.gamma)
        torch.nn.init.normal_(layer.beta)
    return layer


def tokens(n: int = 30) -> Tensor:
    return torch.randn(2, n, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def projected(layer: attention.Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, v (B, N, heads, C / heads), k (B, N, heads, 1) from the projection's rows in the order q, k, v."""
    q, k, v = layer.qkv(x).split((12, 4, 12), dim=-1)
    return tuple(t.unflatten(-1, (4, -1)) for t in (q, k, v))


def by_head(x: Tensor) -> Tensor:
    """(B, N, heads, D) -> (B D, heads, N): what a convolution with a kernel per head takes."""
    return x.permute(0, 3, 2, 1).flatten(0, 1)


def from_heads(x: Tensor, batch: int = 2) -> Tensor:
    return x.unflatten(0, (batch, -1)).permute(0, 3, 2, 1)


def test_on_a_grid_it_is_the_formula_with_a_convolution():
    """sigmoid(Q) (conv(exp(K) V, exp(w) - 1) + sum exp(K) V) / (conv(exp(K), exp(w) - 1) + sum exp(K))."""
    layer, x = build(causal=False, grid=GRID), tokens()
    q, k, v = projected(layer, x)
    filters = layer.kernel().expm1()[:, None]

    def sums(values: Tensor) -> Tensor:
        image = by_head(values).unflatten(-1, GRID)
        near = F.conv2d(image, filters, padding=1, groups=4).flatten(-2)
        return from_heads(near + image.sum((-2, -1))[..., None])

    y = (q.sigmoid() * sums(k.exp() * v) / sums(k.exp())).flatten(-2)
    torch.testing.assert_close(layer(x), layer.proj(y), **EXACT)


@pytest.mark.parametrize("window", [1, 4, 29])
def test_in_language_the_convolution_looks_back(window):
    layer, x = build(causal=True, window=window), tokens()
    q, k, v = projected(layer, x)
    filters = layer.kernel()[:, None, :window].expm1()  # the distances window - 1, ..., 0

    def sums(values: Tensor) -> Tensor:
        line = by_head(values)
        return from_heads(F.conv1d(F.pad(line, (window - 1, 0)), filters, groups=4) + line.cumsum(-1))

    y = (q.sigmoid() * sums(k.exp() * v) / sums(k.exp())).flatten(-2)
    torch.testing.assert_close(layer(x), layer.proj(y), **EXACT)


def test_a_kernel_longer_than_the_model_decodes_as_the_whole_sequence():
    geometry = Geometry(dim=12, heads=3, length=4, causal=True)
    layer = attention.build("aft_conv", geometry, aft_heads=4, window=11).double().eval()
    torch.nn.init.normal_(layer.gamma)
    x, state, steps = tokens(12), layer.start(2), []
    for i in range(12):
        y, state = layer.step(x[:, i : i + 1], state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x), **EXACT)


def test_more_tokens_than_the_grid_has_are_refused():
    with pytest.raises(SetupError, match="31"):
        build(causal=False, grid=GRID)(tokens(31))


@pytest.mark.parametrize(("causal", "grid"), [(True, None), (False, None), (False, GRID)])
def test_it_starts_as_aft_simple_with_a_key_per_head(causal, grid):
    layer, x = build(causal, grid, trained=False), tokens()
    simple = attention.build("aft_simple", Geometry(dim=12, heads=4, length=30, causal=causal)).double()
    q, k, v = layer.project(x)
    assert k.shape == (2, 4, 30, 1)
    torch.testing.assert_close(layer.mix(q, k, v, x), simple.mix(q, k.expand_as(v), v, x), **EXACT)
    assert (build(causal, grid)(x) - layer(x)).abs().max() > 1e-3  # once gamma and beta are learned


def test_kernels_have_mean_beta_and_standard_deviation_gamma():
    layer = build(causal=False, grid=GRID, window=5)
    kernel = layer.kernel()
    assert kernel.shape == (4, 5, 5)
    torch.testing.assert_close(kernel.mean((1, 2)), layer.beta)
    torch.testing.assert_close(kernel.std((1, 2), correction=0), layer.gamma.abs(), rtol=1e-5, atol=0)


def test_a_kernel_of_one_tap_is_beta_and_has_gradients():
    layer = build(causal=True, window=1)
    torch.testing.assert_close(layer.kernel(), layer.beta[:, None])
    layer(tokens()).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_parameters_of_the_smaller_models_of_the_paper():
    """DeiT-tiny's C = 192 and AFT-conv-32-11: projections of 2 C + h rows, 32 x 121 taps, gamma and beta."""
    geometry = Geometry(dim=192, heads=3, length=197, causal=False, bias=True, grid=(14, 14), prefix=1)
    layer = attention.build("aft_conv", geometry)
    assert layer.qkv.weight.shape == (2 * 192 + 32, 192)
    own = {n: p.numel() for n, p in layer.named_parameters() if n.split(".")[0] not in ("qkv", "proj")}
    assert own == {"taps": 32 * 11 * 11, "gamma": 32, "beta": 32}
    assert marks_of(layer)["taps"].no_weight_decay
    assert not layer.gamma.any()
    assert not layer.beta.any()


def test_queries_of_the_last_positions_only():
    layer, x = build(causal=True), tokens()
    q, k, v = layer.project(x, last=4)
    assert (q.shape, k.shape, v.shape) == ((2, 4, 4, 3), (2, 4, 30, 1), (2, 4, 30, 3))
    torch.testing.assert_close(layer(x, last=4), layer(x)[:, -4:], **EXACT)


@pytest.mark.parametrize("offset", [-9, -4, -1, 0, 1, 4, 9])
@pytest.mark.parametrize("taps", [1, 3, 21])
def test_toeplitz_is_a_table_of_distances(offset, taps):
    line = torch.arange(1.0, taps + 1)
    reach = taps // 2
    expected = torch.zeros(4, 4)
    for t in range(4):
        for u in range(4):
            if abs(u + offset - t) <= reach:
                expected[t, u] = line[reach + u + offset - t]
    assert torch.equal(toeplitz(line, 4, offset), expected)


@pytest.mark.parametrize(
    ("causal", "knobs", "message"),
    [
        (True, {"aft_heads": 5}, "aft_heads must divide model.dim=12, got 5"),
        (True, {"aft_heads": 0}, "aft_heads must divide"),
        (True, {"aft_heads": 4, "window": 0}, "window=0: must be at least 1"),
        (False, {"aft_heads": 4, "window": 4}, "window must be odd"),
    ],
)
def test_impossible_knobs_are_refused(causal, knobs, message):
    with pytest.raises(SetupError, match=message):
        attention.build("aft_conv", Geometry(dim=12, heads=3, length=30, causal=causal), **knobs)
