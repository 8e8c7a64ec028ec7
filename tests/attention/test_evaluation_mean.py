"""The mean over an evaluation, under the transforms of torch."""

import math

import pytest
import torch

from fourierformer.attention.engines.evaluation import EvaluationMean


def test_only_a_switch_from_training_begins_anew():
    """A part of an evaluation that switches to evaluation once more does not forget the parts before."""
    mean = EvaluationMean().eval()
    for value in (1.0, 3.0):
        mean.eval().add(torch.full((4,), value))
    assert mean.value() == mean.train().value() == 2
    assert math.isnan(mean.eval().value())


def test_values_in_vmap_are_not_counted():
    mean = EvaluationMean().eval()
    torch.vmap(lambda x: (mean.add(x), x)[1])(torch.ones(3, 2))
    assert math.isnan(mean.value())
    mean.add(torch.full((2,), 3.0))
    assert mean.value() == 3


def test_values_in_compiled_code_are_counted_without_a_break():
    mean = EvaluationMean().eval()
    compiled = torch.compile(lambda x: (mean.add(x), 2 * x)[1], backend="eager", fullgraph=True)
    compiled(torch.ones(4))
    compiled(torch.full((4,), 2.0))
    assert mean.value() == 1.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_counts_every_value(dtype):
    mean, values = EvaluationMean().to(dtype).eval(), torch.tensor([0.25, 0.5] * 20000, dtype=dtype)
    for part in values.split(400):
        mean.add(part)
    assert mean.value() == 0.375
