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


def span_prior(layer, h, q, i, j):
    one, other = position(layer, i), position(layer, j)
    if one is None or other is None:
        return 0.0
    share = min(1.0, max(0.0, (40 * layer.span[h].item() + layer.ramp - math.dist(one, other)) / layer.ramp))
    return math.log(share) if share else -math.inf


N = 13
CASES = [(True, None, 0), (False, None, 0), (False, (4, 3), 1)]


@pytest.mark.parametrize(("causal", "grid", "prefix"), CASES)
@pytest.mark.parametrize(
    ("name", "prior"), [("alibi", alibi_prior), ("local_gaussian", window_prior), ("adaptive_span", span_prior)]
)
def test_every_row_is_a_softmax_with_the_prior(name, prior, causal, grid, prefix):
    layer = layer_of(name, causal, grid=grid, prefix=prefix, **({"ramp": 3} if name == "adaptive_span" else {}))
    if name == "adaptive_span":
        layer.span.data = torch.tensor([0.0, 0.06]).double()
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


def test_a_span_of_the_whole_length_is_softmax():
    layer, x = layer_of("adaptive_span", True), tokens(N)
    softmax = layer_of("softmax", True)
    softmax.load_state_dict({key: value for key, value in layer.state_dict().items() if key != "span"})
    layer.span.data.fill_(1.0)
    torch.testing.assert_close(layer(x), softmax(x), **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_padding_within_the_span_leaves_weights_of_others_and_finite_gradients(causal):
    """A query whose window holds only padding gets 0."""
    layer, x = layer_of("adaptive_span", causal, ramp=2), tokens(N).requires_grad_()
    layer.span.data.zero_()
    keep = torch.ones(2, N, dtype=torch.bool)
    keep[:, 3:8] = False  # token 5 sees 4 to 6
    layer(x, keep=keep).square().sum().backward()
    assert x.grad.isfinite().all()
    assert layer.span.grad.isfinite().all()
    q, k, v = layer.project(x)
    assert not layer.mix(q, k, v, x, keep=keep)[:, :, 5].any()


def test_spans_have_a_price_and_limits():
    layer = layer_of("adaptive_span", length=40, penalty=0.5)
    layer.span.data = torch.tensor([-0.5, 2.0]).double()
    layer.end_step(lambda x: x, torch.ones(()))
    assert layer.span.tolist() == [0.0, 1.0]
    assert layer.auxiliary_loss(torch.zeros(3)).tolist() == [0.5 * 20] * 3
    assert layer.diagnostics() == {"span": 20.0}


def test_a_longer_reach_that_helps_lengthens_the_span():
    """The only path to the span is the edge of the window: a value just beyond it that lowers the loss."""
    layer = layer_of("adaptive_span", True, heads=1, ramp=4)
    layer.span.data.zero_()
    q, k, v = torch.zeros(3, 1, 1, 6, 8).double()
    v[0, 0, 2] = -1.0  # 3 tokens before the last one: share 1/4
    layer.mix(q, k, v, v)[0, 0, 5].sum().backward()
    assert layer.span.grad < 0
