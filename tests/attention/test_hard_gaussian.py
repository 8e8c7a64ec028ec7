"""hard_gaussian against its formula, and its two limits."""

import pytest
import torch

from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, rows, tokens


@BOTH
@pytest.mark.parametrize("width", [0.5, 2.0])
def test_windows_around_neighbours(causal, width):
    layer = layer_of("hard_gaussian", causal, heads=4, width=width)
    for number, (h, _, _, v, y) in enumerate(rows(layer, causal)):
        i, offset = number % 7, [-1, 0][h % 2] if causal else [-1, 0, 1][h % 3]
        distance = torch.arange(len(v)).double() - i - offset
        weights = (-distance.square() / (2 * width**2)).exp()
        torch.testing.assert_close(y, weights / weights.sum() @ v, **EXACT)


@BOTH
def test_a_wide_window_is_the_mean_and_a_narrow_one_the_neighbour(causal):
    x = tokens(9)
    wide, narrow = (layer_of("hard_gaussian", causal, width=w) for w in (1e9, 1e-3))
    q, k, v = wide.project(x)
    seen = torch.ones(9, 9).double().tril() if causal else torch.ones(9, 9).double()
    torch.testing.assert_close(wide.mix(q, k, v, x), seen / seen.sum(1, keepdim=True) @ v, **EXACT)
    before = torch.cat([v[:, 0, :1], v[:, 0, :-1]], dim=1)
    torch.testing.assert_close(narrow.mix(q, k, v, x), torch.stack([before, v[:, 1]], dim=1), **EXACT)


def test_the_width_is_positive():
    with pytest.raises(SetupError, match=r"attention\.width=0.*at least 1e-06"):
        layer_of("hard_gaussian", True, width=0.0)
