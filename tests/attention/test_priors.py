"""ALiBi and the predicted Gaussian window, row by row from their formulas."""

import math

import pytest
import torch

from fourierformer.attention.mechanisms.priors import alibi_slopes
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


def test_alibi_slopes_are_the_papers():
    """Section 3: 1/2 .. 1/256 for 8 heads; for 16 the same and their geometric means with the one before."""
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    torch.testing.assert_close(alibi_slopes(16), torch.tensor([2 ** (-h / 2) for h in range(1, 17)]))
    # 12 heads: those of 8, then the 1st, 3rd, 5th, 7th of 16
    expected = [*(2.0**-h for h in range(1, 9)), *(2 ** -(h / 2) for h in (1, 3, 5, 7))]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(expected))


def position(layer, token):
    """Row and column on the grid, or the position; None for the prefix."""
    if not layer.grid:
        return (float(token),)
    return tuple(map(float, divmod(token - layer.prefix, layer.grid[1]))) if token >= layer.prefix else None


def alibi_prior(layer, h, q, i, j):
    one, other = position(layer, i), position(layer, j)
    return 0.0 if one is None or other is None else -layer.slopes[h].item() * math.dist(one, other)


def window_prior(layer, h, q, i, j):
    one, other = position(layer, i), position(layer, j)
    if one is None or other is None:
        return 0.0
    hidden = torch.tanh(layer.hidden.weight @ q)
    extents = layer.grid or (i + 1 if layer.geometry.causal else N,)
    total = 0.0
    for axis, extent in enumerate(extents):
        centre = extent * torch.sigmoid(layer.centre.weight[axis] @ hidden)
        sigma = extent * torch.sigmoid(layer.window.weight[axis] @ hidden) / 2
        total -= (other[axis] + 0.5 - centre) ** 2 / (2 * sigma**2)
    return total.item()


N = 13
CASES = [(True, None, 0), (False, None, 0), (False, (4, 3), 1)]


@pytest.mark.parametrize(("causal", "grid", "prefix"), CASES)
@pytest.mark.parametrize(("name", "prior"), [("alibi", alibi_prior), ("local_gaussian", window_prior)])
def test_every_row_is_a_softmax_with_the_prior(name, prior, causal, grid, prefix):
    layer = layer_of(name, causal, grid=grid, prefix=prefix)
    q, k, v, mixed = projected(layer, tokens(N, batch=1))
    for h in range(2):
        for i in range(N):
            seen = i + 1 if causal else N
            extra = torch.tensor([prior(layer, h, q[0, h, i], i, j) for j in range(seen)], dtype=torch.float64)
            expected = softmax_row(q[0, h, i], k[0, h, :seen], v[0, h, :seen], extra)
            torch.testing.assert_close(mixed[0, h, i], expected, rtol=0, atol=1e-7)  # slopes are float32


@pytest.mark.parametrize("name", ["alibi", "local_gaussian"])
def test_the_class_token_alone_attends_to_itself(name):
    layer = layer_of(name, grid=(4, 3), prefix=1)
    _, _, v, mixed = projected(layer, tokens(1))
    torch.testing.assert_close(mixed, v, **EXACT)
