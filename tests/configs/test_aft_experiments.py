"""The recipes of the AFT paper (Zhai et al. 2021), value by value as far as they are known, and what follows."""

import pytest
import torch

from fourierformer.config import RunSpec, flatten
from fourierformer.runs.spec import attention_of, task_of
from tests.helpers.command_line import spec_of


def recipe(name: str, *overrides: str) -> RunSpec:
    script = "train_vit" if name.startswith("imagenet") else "train_lm"
    return spec_of(f"experiment={name}", *overrides, script=script)


ENWIK8 = {"data.name": "enwik8", "model.length": 1024, "trainer.epochs": 100, "optim.weight_decay": 0.5}
PIXELS = {
    **{"data.name": "cifar10_pixels", "model.length": 3072, "trainer.epochs": 200, "global_batch_size": 128},
    **{"optim.lr": 3e-3, "optim.weight_decay": 0.1, "model.dropout": 0.1},
}
WIDE, DEEP = {"model.layers": 12, "model.dim": 512}, {"model.layers": 24, "model.dim": 256}
PUBLISHED = {
    "enwik8_aft": ENWIK8 | WIDE | {"model.heads": 8},
    "enwik8_aft_deep": ENWIK8 | DEEP | {"model.heads": 4},
    "cifar10_pixels": PIXELS | WIDE | {"model.heads": 4},
    "cifar10_pixels_deep": PIXELS | DEEP | {"model.heads": 2},
}
LOCAL = {"enwik8": {"window": 32, "bias_dim": 256}, "cifar10": {"window": 256, "bias_dim": 64}}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("attention", [None, "softmax"])  # softmax must not meet knobs of AFT
def test_published_values(name, attention):
    values = dict(flatten(recipe(name, *([f"attention={attention}"] if attention else [])).values))
    assert {key: values[key] for key in PUBLISHED[name]} == PUBLISHED[name]
    assert values["optim.name"] == "adamw"
    assert values["attention.name"] == (attention or "aft_local")
    if not attention:
        knobs = LOCAL[name.split("_")[0]]
        assert {key: values[f"attention.{key}"] for key in knobs} == knobs


@pytest.mark.parametrize(
    ("name", "epoch", "steps"),
    # (90,000,000 / 128 - 1) / 1,024 = 686.6; 50,000 // 128
    [("enwik8_aft", 687, 68_700), ("cifar10_pixels", 390, 78_000)],
)
def test_steps_from_published_sizes(name, epoch, steps):
    spec = recipe(name, "attention=softmax")
    assert task_of(spec).steps_per_epoch(spec, None) == epoch
    assert spec.trainer.epochs * epoch == steps


def parameters(spec: RunSpec) -> int:
    with torch.device("meta"):
        model = task_of(spec).build_model(spec, attention_of(spec), None)
    return sum(p.numel() for p in model.parameters())


def language(layers: int, dim: int) -> int:
    """Projections 4 d^2, feed-forward 2 d 4d + 4d + d, two norms of 2 d each; embedding and bias of 256 tokens."""
    return layers * (4 * dim**2 + 8 * dim**2 + 5 * dim + 4 * dim) + 256 * (dim + 1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("enwik8_aft", (12, 512)), ("cifar10_pixels", (12, 512)), ("cifar10_pixels_deep", (24, 256))],
)
def test_parameters_of_the_language_models(name, shape):
    softmax = language(*shape)
    assert softmax == {(12, 512): 37_935_360, (24, 256): 18_995_456}[shape]
    assert parameters(recipe(name, "attention=softmax")) == softmax
    length, rank = (1024, 256) if name == "enwik8_aft" else (3072, 64)
    assert parameters(recipe(name)) == softmax + shape[0] * 2 * length * rank  # u and v in every layer


def aft_conv_layer(dim: int, heads: int, window: int) -> int:
    """Q and V of d, K of one number per head, a projection, windows with gain and bias; less softmax attention's."""
    ours = dim * (2 * dim + heads) + 2 * dim + heads + dim * dim + dim + heads * (window**2 + 2)
    return ours - (dim * 3 * dim + 3 * dim + dim * dim + dim)


@pytest.mark.parametrize(
    ("overrides", "base", "dim", "heads", "window", "printed"),
    [
        ((), 5_679_400, 192, 32, 11, 5.4),
        (("attention.aft_heads=192",), 5_679_400, 192, 192, 11, 5.9),
        (("model=deit_small_gap", "attention.aft_heads=384", "attention.window=15"), 21_974_632, 384, 384, 15, 23.0),
    ],
)
def test_parameters_of_aft_conv_are_those_the_paper_prints(overrides, base, dim, heads, window, printed):
    count = parameters(recipe("imagenet_aft_conv", *overrides))
    assert count == base + 12 * aft_conv_layer(dim, heads, window)
    assert count / 1e6 == pytest.approx(printed, abs=0.07)  # it prints 5.9 for 5.96


def test_aft_conv_sees_the_grid_and_nothing_else():
    spec = recipe("imagenet_aft_conv")
    geometry = spec.model.geometry()
    assert (geometry.grid, geometry.prefix, geometry.length) == ((14, 14), 0, 196)
    assert (spec.attention.knobs["aft_heads"], spec.attention.knobs["window"]) == (32, 11)
    baseline = recipe("imagenet_deit_tiny")
    unchanged = ("optim", "schedule", "augment", "trainer", "global_batch_size")
    assert {key: spec.values[key] for key in unchanged} == {key: baseline.values[key] for key in unchanged}
