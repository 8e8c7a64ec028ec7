"""Training steps of the paper's models: the paper's own configs, what does not fit, what fails."""

from types import SimpleNamespace

import pytest
import torch
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from benchmarks import recipes, steps, trainings
from benchmarks.measure import AttentionClock
from fourierformer.attention import Attention
from tests.helpers.command_line import CONFIGS

NEVER = float("inf")


@pytest.mark.parametrize("attention", ["softmax", "fourier"])
@pytest.mark.parametrize("name", recipes.RECIPES)
def test_configs_are_what_hydra_composes(name, attention):
    recipe = recipes.RECIPES[name]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        overrides = [f"experiment={recipe.experiment}", f"attention={attention}"]
        composed = OmegaConf.to_container(hydra_compose(recipe.script, overrides=overrides))
    composed.pop("scale", None)
    assert recipes.compose(recipe.script, recipe.experiment, attention=attention) == composed


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_recipes_have_the_papers_batch_and_length(name):
    recipe = recipes.RECIPES[name]
    values = recipes.compose(recipe.script, recipe.experiment)
    trainer, batch = values["trainer"], values["global_batch_size"]
    whole = trainer["steps"] or trainer["epochs"] * (values["data"]["expect"]["train"] // batch)
    assert values["model"]["name"] == name
    assert recipe.whole_steps * recipe.batch == whole * batch


@pytest.fixture
def args(tmp_path):
    return SimpleNamespace(device="cpu", small=True, seconds=0, minutes=1, deadline=NEVER, model=["lm_small"])


@pytest.fixture
def failing(monkeypatch):
    """Makes a training of one precision fail at its start with what `problem(attention, micro)` gives."""

    def install(problem):
        def begin(recipe, chosen, precision, device, micro, *, small, start=trainings.start):
            if error := problem(chosen, micro):
                raise error
            return start(recipe, chosen, precision, device, micro, small=small)

        monkeypatch.setattr(trainings, "start", begin)
        monkeypatch.setattr(steps, "PRECISIONS", ["fp32"])

    return install


def test_what_does_not_fit_is_tried_with_half_the_micro_batch(args, failing):
    def too_large(chosen, micro):
        return torch.OutOfMemoryError("no") if chosen == "fourier" and micro > 1 else None

    failing(too_large)
    softmax, *fourier = steps.bench(args)
    assert softmax.measured
    assert [row.micro_batch for row in fourier] == [4, 2, 1]
    assert [row.status for row in fourier[:2]] == [f"out of memory with micro_batch_size={n}" for n in (4, 2)]
    assert fourier[0].step_ms is fourier[0].time_ratio is None
    assert fourier[2].measured
    assert fourier[2].time_ratio == fourier[2].step_ms / softmax.step_ms


def test_what_never_fits_ends(args, failing):
    args.model = ["deit_tiny"]
    failing(lambda chosen, micro: KeyError("tile") if chosen == "softmax" else None)
    softmax, fourier = steps.bench(args)
    assert softmax.status == "failed: KeyError: 'tile'"
    assert fourier.measured
    assert fourier.time_ratio is None


def test_nothing_starts_when_the_time_is_up(args):
    args.deadline = 0
    assert {row.status for row in steps.bench(args)} == {"left out: the 1 minutes are used up"}


@pytest.mark.parametrize("name", ["lm_small", "deit_tiny"])
def test_the_clock_sees_every_layer_forward_and_backward_where_blocks_are_compiled(name):
    recipe = steps.replace(recipes.RECIPES[name], batch=4)
    fit = trainings.start(recipe, "fourier", "fp32", torch.device("cpu"), 2, small=True)
    fit.model.compile_blocks(backend="eager")
    layers = sum(isinstance(module, Attention) for module in fit.model.modules())
    with torch.compiler.set_stance("force_eager"), AttentionClock(fit.model, fit.device) as clock:
        fit.train_step()
    assert len(clock.marks) == 2 * layers * fit.objective.micro_steps
    assert not clock._open
    assert all(end > begin for begin, end in clock.marks)
