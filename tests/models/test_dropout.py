"""Dropout with 16 random bits per element, against what dropout has to be."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.models.config import LMConfig
from fourierformer.models.dropout import Dropout16
from fourierformer.models.lm import WordLM

KEPT = 2**16 - round(0.3 * 2**16)


def test_it_divides_kept_elements_by_the_share_that_is_kept():
    torch.manual_seed(0)
    x = torch.randn(7, 1001, dtype=torch.float64, requires_grad=True)
    y = Dropout16(0.3)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    factors = torch.where(y == 0, 0.0, torch.tensor(2**16 / KEPT, dtype=torch.float64))
    torch.testing.assert_close(y, x * factors)
    torch.testing.assert_close(gradient, factors)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_elements_are_dropped_with_probability_p_and_independently(p):
    """Of the four numbers in a word of 64 bits, each alone and each pair."""
    torch.manual_seed(0)
    words = 2**18
    dropped = (Dropout16(p)(torch.ones(words, 4)) == 0).double()
    five_deviations = 5 * (p * (1 - p) / words) ** 0.5
    assert dropped.mean(0).tolist() == pytest.approx([p] * 4, abs=five_deviations + 2**-16)
    neighbours = torch.cat([dropped, dropped.roll(1, 0)], dim=1)
    correlation = torch.corrcoef(neighbours.T) - torch.eye(8)
    assert correlation.abs().max() < 5 * words**-0.5


def test_half_precision_odd_sizes_and_empty_tensors_keep_type_and_shape():
    for shape in ((3,), (2, 0), (5, 7)):
        y = Dropout16(0.5)(torch.ones(shape, dtype=torch.bfloat16))
        assert (y.dtype, y.shape) == (torch.bfloat16, shape)
        assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_no_element_is_dropped_in_evaluation_or_at_0():
    x = torch.randn(100)
    assert torch.equal(Dropout16(0.9).eval()(x), x)
    assert torch.equal(Dropout16(0.0)(x), x)


def test_the_largest_rate_keeps_one_element_in_65536():
    torch.manual_seed(0)
    y = Dropout16(1 - 1e-9)(torch.ones(2**20))
    assert set(y.tolist()) == {0.0, 2.0**16}
    assert (y > 0).sum().item() == pytest.approx(16, abs=5 * 4)


@pytest.mark.parametrize("feed_forward", ["relu", "swiglu"])
def test_a_model_takes_it_in_every_place_with_the_same_parameters(feed_forward):
    shape = {"name": "t", "layers": 2, "dim": 16, "heads": 2, "inner": 32, "length": 8, "dropout": 0.3}
    softmax = partial(attention.build, "softmax")
    configs = [LMConfig(**shape, feed_forward=feed_forward, dropout_mask=mask) for mask in ("torch", "bits16")]
    models = [WordLM(config, 9, [], softmax) for config in configs]
    kinds = [[type(part) for part in model.modules() if isinstance(part, torch.nn.Dropout)] for model in models]
    assert kinds == [[torch.nn.Dropout] * len(kinds[0]), [Dropout16] * len(kinds[0])]
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


def test_under_compile_it_is_torchs_dropout():
    y = torch.compile(Dropout16(0.5), fullgraph=True, backend="aot_eager")(torch.ones(1000))
    assert set(y.tolist()) == {0.0, 2.0}
