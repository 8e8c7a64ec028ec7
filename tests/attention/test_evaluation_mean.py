"""The mean over an evaluation, under the transforms of torch."""

import math

import torch

from fourierformer.attention.engines.evaluation import EvaluationMean


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
