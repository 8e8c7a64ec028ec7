"""The contract at other values of every knob: test_contract.py has the defaults."""

import typing
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fourierformer import attention
from fourierformer.attention import Attention, Geometry
from fourierformer.errors import SetupError
from tests.helpers.mechanisms import CHOICES, tokens
from tests.helpers.one_by_one import one_by_one

LENGTH = 16
X, OTHER = tokens(LENGTH).double(), tokens(LENGTH, seed=2).double()


def other_values(name: str) -> list[tuple[str, object]]:
    """(knob, value): every word that it can have, both truth values, nothing, small whole numbers and 1.0; without
    texts, lists and dictionaries."""
    found = []
    for knob, parameter in attention.knobs(name).items():
        values: list[object] = []
        for kind in typing.get_args(parameter.annotation) or [parameter.annotation]:
            of_kind = {bool: [True, False], int: [1, 2, 4], float: [1.0], type(None): [None]}
            words = typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
            values += words or of_kind.get(kind, [kind] if isinstance(kind, str) else [])
        found += [(knob, value) for value in values if value != parameter.default]
    return found


WITH_KNOBS = [(name, causal) for name, causal in CHOICES if other_values(name)]


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


def assert_same(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8, msg=lambda text: f"{what}: {text}")


def layers(name: str, causal: bool) -> Iterator[tuple[str, Attention]]:
    """'knob=value' and its layer, for each of other_values; a refusal must name the knob."""
    for knob, value in other_values(name):
        layer = built_with(name, causal, knob, value)
        if isinstance(layer, Attention):
            yield f"{knob}={value}", layer
        else:
            assert knob in str(layer), layer


@pytest.mark.parametrize(("name", "causal"), WITH_KNOBS)
def test_every_parameter_gets_a_finite_gradient(name, causal):
    for what, layer in layers(name, causal):
        x = X.clone().requires_grad_()
        (layer(x).square().sum() + layer.auxiliary_loss(torch.ones(2).double()).sum()).backward()
        for key, gradient in {"x": x.grad, **{key: p.grad for key, p in layer.named_parameters()}}.items():
            assert gradient is not None, f"{what}: {key} gets no gradient"
            assert gradient.isfinite().all(), f"{what}: {key}"


@pytest.mark.parametrize(("name", "causal"), WITH_KNOBS)
@torch.no_grad()
def test_last_positions_and_single_rows_equal_the_full_result(name, causal):
    for what, layer in layers(name, causal):
        y = layer.eval()(X)
        assert_same(layer(X, last=3), y[:, -3:], what)
        assert_same(layer(X[1:])[0], y[1], what)


@pytest.mark.parametrize("name", [name for name, causal in WITH_KNOBS if causal])
@torch.no_grad()
def test_no_output_depends_on_later_tokens_and_decoding_is_forward(name):
    for what, layer in layers(name, causal=True):
        for training in (True, False):
            y = layer.train(training)(X)
            for cut in (1, 9, LENGTH - 1):
                changed = torch.cat([X[:, :cut], 5 * OTHER[:, cut:]], dim=1)
                assert_same(layer(changed)[:, :cut], y[:, :cut], f"{what}, {cut} tokens")
        if layer.start(2) is not None:
            assert_same(one_by_one(layer, X), layer(X), what)
