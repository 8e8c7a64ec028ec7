"""Averaged weights are torch's own, bit by bit, and so is their state."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fourierformer.training.average import MovingAverage


def test_as_torch_averages_also_after_a_resume():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3, bias=False))
    ours, theirs = MovingAverage(model, 0.9), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for update in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(4, 5))  # changes the buffers
        if update == 3:
            resumed = MovingAverage(model, 0.9)
            resumed.load_state_dict(ours.state_dict())
            ours = resumed
        for average in (ours, theirs):
            average.update_parameters(model)
        actual, expected = ours.state_dict(), theirs.state_dict()
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], expected[key]) for key in expected)
    assert ours.n_averaged == 5
    assert not torch.equal(ours.module[0].weight, model[0].weight)
