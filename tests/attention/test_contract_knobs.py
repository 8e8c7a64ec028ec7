"""The contract at other values of every knob: test_contract.py has the defaults."""

import typing
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fourierformer import attention
from fourierformer.attention import Attention, Geometry
from fourierformer.errors import SetupError
from tests.helpers.mechanisms import CHOICES
from tests.helpers.one_by_one import one_by_one

LENGTH = 16
SAME = {"rtol": 1e-8, "atol": 1e-8}


def other_values(name: str) -> list[tuple[str, object]]:
    """(knob, value): every word that it can have, both truth values, nothing, small whole numbers and 1.0; without
    texts, lists and dictionaries."""
    found = []
    for knob, parameter in attention.knobs(name).items():
        values: list[object] = []
        for kind in typing.get_args(parameter.annotation) or [parameter.annotation]:
            of_kind = {bool: [True, False], int: [1, 2, 4], float: [1.0], type(None): [None]}
            values += typing.get_args(kind) or of_kind.get(kind, [kind] if isinstance(kind, str) else [])
        found += [(knob, value) for value in values if value != parameter.default]
    return found


def built_with(name: str, causal: bool, knob: str, value: object) -> Attention | SetupError:
    """In float64, with weights of linear maps far from 0; or the refusal."""
    grid = (4, 4) if attention.mechanism(name).needs_grid else None
    geometry = Geometry(dim=32, heads=4, length=LENGTH, causal=causal, grid=grid)
    torch.manual_seed(0)
    try:
        layer = attention.build(name, geometry, **{knob: value}).double()
    except SetupError as error:
        return error
    with torch.no_grad():
        for linear in layer.modules():
            if isinstance(linear, nn.Linear):
                linear.weight.normal_(std=0.4)
    return layer


def layers(name: str, causal: bool) -> Iterator[tuple[str, Attention]]:
    """'knob=value' and its layer, for each of other_values; a refusal must name the knob."""
    for knob, value in other_values(name):
        layer = built_with(name, causal, knob, value)
        if isinstance(layer, Attention):
            yield f"{knob}={value}", layer
        else:
            assert knob in str(layer), layer


def far(n: int = LENGTH, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, n, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_every_parameter_gets_a_finite_gradient(name, causal):
    for what, layer in layers(name, causal):
        x = far().requires_grad_()
        (layer(x).square().sum() + layer.auxiliary_loss(torch.ones(2).double()).sum()).backward()
        for key, gradient in {"x": x.grad, **{key: p.grad for key, p in layer.named_parameters()}}.items():
            assert gradient is not None, f"{what}: {key} gets no gradient"
            assert gradient.isfinite().all(), f"{what}: {key}"


@pytest.mark.parametrize(("name", "causal"), CHOICES)
@torch.no_grad()
def test_last_positions_and_single_rows_equal_the_full_result(name, causal):
    for what, layer in layers(name, causal):
        y = layer.eval()(far())
        torch.testing.assert_close(layer(far(), last=3), y[:, -3:], **SAME, msg=what)
        torch.testing.assert_close(layer(far()[1:])[0], y[1], **SAME, msg=what)


@pytest.mark.parametrize("name", [name for name, causal in CHOICES if causal])
@torch.no_grad()
def test_no_output_depends_on_later_tokens_and_decoding_is_forward(name):
    for what, layer in layers(name, causal=True):
        for training in (True, False):
            y = layer.train(training)(far())
            for cut in (1, 9, LENGTH - 1):
                changed = torch.cat([far()[:, :cut], 5 * far(seed=2)[:, cut:]], dim=1)
                torch.testing.assert_close(layer(changed)[:, :cut], y[:, :cut], **SAME, msg=f"{what}, {cut} tokens")
        if layer.start(2) is not None:
            torch.testing.assert_close(one_by_one(layer, far()), layer(far()), **SAME, msg=what)
