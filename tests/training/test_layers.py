"""What attention layers draw, add and learn in a training step does not depend on how its rows are divided among
micro-batches and processes."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.training.layers import LayerSteps

ROWS, TOKENS, DIM = 6, 10, 16
CPU = torch.device("cpu")


class Objective:
    """Rows of noise; the loss of a row is the mean square of what comes out."""

    def __init__(self):
        self.x = torch.randn(ROWS, TOKENS, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def rows(self, batch):
        return torch.tensor(batch), len(batch) / ROWS

    def row_losses(self, model, batch):
        return model(self.x[batch]).square().mean((1, 2))

    def loss(self, model, batch):
        return self.row_losses(model, batch).mean() * len(batch) / ROWS


def layer_of(name: str, causal: bool, **knobs) -> nn.Module:
    torch.manual_seed(0)
    return attention.build(name, Geometry(DIM, 2, TOKENS, causal), **knobs).double().train()


CASES = [
    ("routing", True, {"clusters": 3, "local_heads": 0, "decay": 0.5, "commitment": 0.1}),
    ("routing", False, {"clusters": 3, "local_heads": 0, "decay": 0.5, "commitment": 0.1}),
    ("sinkhorn", False, {"block": 2}),
    ("sac", True, {"edges": 2}),
]


def step(name: str, causal: bool, knobs: dict, batches: list[list[int]], steps: int = 2) -> tuple[dict, dict]:
    """Gradients of the last step, and everything that layers keep. What several processes would add up is added up here
    one after the other."""
    layer, objective = layer_of(name, causal, **knobs), Objective()
    layers = LayerSteps(layer, objective, CPU)
    for number in range(steps):
        layer.zero_grad()
        layers.begin(number)
        for batch in batches:
            layers.loss(layer, batch)[1].backward()
        layers.end(lambda x: x, torch.tensor(1.0))
    return {n: p.grad for n, p in layer.named_parameters()}, dict(layer.named_buffers())


@pytest.mark.parametrize(("name", "causal", "knobs"), CASES)
def test_dividing_the_rows_otherwise_changes_nothing(name, causal, knobs):
    expected = step(name, causal, knobs, [[0, 1, 2, 3, 4, 5]])
    for batches in ([[0], [1], [2], [3], [4], [5]], [[4, 1, 0], [5, 2], [3]]):
        found = step(name, causal, knobs, batches)
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for key, value in other.items():
                torch.testing.assert_close(one[key], value, rtol=0, atol=1e-12, msg=lambda text, k=key: f"{k}: {text}")


def test_what_is_added_is_learned_from_but_not_reported():
    layer, objective = layer_of("routing", True, local_heads=0, commitment=0.5), Objective()
    layers, batch = LayerSteps(layer, objective, CPU), [1, 4, 5]
    layers.begin(0)
    part, whole = layers.loss(layer, batch)
    assert part.item() == pytest.approx(objective.loss(layer, batch).item(), abs=1e-12)
    distance = 2 * (whole - part) * ROWS / len(batch)
    assert 0 < distance.item() < 4  # squared distances of unit vectors, on average


def test_the_losses_that_a_layer_adds_to_are_without_gradient():
    """A reward of REINFORCE is a number: its own gradient would be added to that of the loss."""
    layer, given = layer_of("sac", True, edges=2), []
    layer.auxiliary_loss = lambda losses: given.append(losses) or torch.zeros_like(losses)
    layers = LayerSteps(layer, Objective(), CPU)
    layers.begin(0)
    part, _ = layers.loss(layer, [1, 4])
    assert part.requires_grad
    assert [losses.requires_grad for losses in given] == [False]
    torch.testing.assert_close(given[0].mean() * 2 / ROWS, part.detach(), rtol=0, atol=1e-12)


def test_layers_without_such_needs_ask_for_the_loss_alone():
    objective = SimpleNamespace(loss=lambda model, batch: torch.ones(()))
    part, whole = LayerSteps(layer_of("softmax", True), objective, CPU).loss(nn.Identity(), None)
    assert part is whole


def test_an_objective_that_knows_no_rows_is_refused_at_the_start():
    objective = SimpleNamespace(loss=lambda model, batch: torch.ones(()))
    with pytest.raises(SetupError, match=r"Routing attention needs the rows of a batch .* rows and row_losses"):
        LayerSteps(layer_of("routing", True), objective, CPU)


def test_diagnostics_are_numbered_by_layer_and_advise_once():
    """A module inside a layer is no layer."""
    layers = nn.Sequential(*(layer_of("fourier_sink", True) for _ in range(2)))
    radii = {f"radius/{i:02d}": layer.log_kernel.radius.abs().item() for i, layer in enumerate(layers)}
    steps = LayerSteps(layers, Objective, CPU)
    assert steps.diagnostics() == (radii, [])

    def advising():
        warnings.warn("set this", stacklevel=2)
        return {"share": 0.5}

    layers[1].diagnostics = advising
    expected = {"radius/00": radii["radius/00"], "share/01": 0.5}
    assert steps.diagnostics() == (expected, ["set this"])
    assert steps.diagnostics() == (expected, [])
