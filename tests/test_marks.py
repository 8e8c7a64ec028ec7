"""Marks of parameters: they belong to modules, and outlive every way of making new parameters."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from fourierformer import attention
from fourierformer.marks import Mark, mark, marks_of

GEOMETRY = attention.Geometry(dim=16, heads=2, length=8, causal=True)
RADIUS = Mark(no_weight_decay=True, lr_multiplier=3.0)


def model() -> nn.Module:
    return nn.Sequential(attention.build("fourier_head", GEOMETRY, radius_lr_multiplier=3.0), nn.Linear(16, 4))


def loaded(original: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assigned(original: nn.Module) -> nn.Module:
    with torch.device("meta"):
        empty = model()
    empty.load_state_dict(original.state_dict(), assign=True)
    return empty


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, loaded, assigned, lambda m: m.to_empty(device="cpu")])
def test_marks_outlive_copies(copied):
    marks = marks_of(copied(model()))
    assert marks.pop("0.radius") == RADIUS
    assert set(marks.values()) == {Mark()}
    assert set(marks) == {"0.qkv.weight", "0.proj.weight", "1.weight", "1.bias"}


def test_a_mark_holds_for_what_a_parameter_is_computed_from():
    layer = attention.build("fourier_head", GEOMETRY, radius_lr_multiplier=3.0)
    parametrize.register_parametrization(layer, "radius", nn.Softplus())
    marks = marks_of(layer)
    assert marks["parametrizations.radius.original"] == RADIUS
    assert marks["qkv.weight"] == Mark()


def test_a_parameter_in_two_modules_is_marked_by_either():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    mark(second, "weight", lr_multiplier=2.0)
    assert marks_of(nn.Sequential(first, second)) == {"0.weight": Mark(lr_multiplier=2.0)}


WITHOUT_DECAY = [
    ("differential", {}, {"vectors"}),
    ("gaussian_full", {}, {"lower"}),
    ("talking_heads", {}, {"of_logits", "of_weights"}),
    ("mgk", {"second": "shift"}, {"mixture", "shift"}),
    ("mlk", {"second": "shift"}, {"mixture", "shift"}),
    ("adaptive_span", {}, {"span"}),
    ("fourier_linear", {}, {"radius"}),
    ("fourier_sink", {}, {"log_kernel.radius"}),
    ("rfa", {}, {"sigma"}),
]


@pytest.mark.parametrize(("name", "knobs", "expected"), WITHOUT_DECAY)
def test_what_does_not_decay(name, knobs, expected):
    marks = marks_of(attention.build(name, GEOMETRY, **knobs))
    assert {key for key, mark in marks.items() if mark.no_weight_decay} == expected
