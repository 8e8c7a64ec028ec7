"""Training steps of the paper's models: the paper's batch and length, what does not fit, what fails."""

from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir

from benchmarks import paper
from benchmarks.clocks import AttentionClock
from benchmarks.training import start
from fourierformer.attention import Attention
from tests.helpers.command_line import CONFIGS

NEVER = float("inf")


@pytest.mark.parametrize("name", paper.MODELS)
def test_models_have_the_papers_batch(name):
    """The language models on one GPU; the images of one of the paper's four GPUs."""
    model = paper.MODELS[name]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        values = compose(model.script, overrides=model.overrides.split())
    assert values.model.name == name
    assert model.batch * (4 if name == "deit_tiny" else 1) == values.global_batch_size


def test_a_whole_run_has_the_papers_steps(args):
    """300 epochs of 1,251 steps of 1,024 images: four times as many steps of 256, whole batches of each epoch."""
    args.small = False
    args.device = "cpu"
    row = paper.Row("deit_tiny", "softmax", "fp32", 256, 2)
    overrides = paper.overrides_of(row, args)
    fit = start("train_vit", [*overrides, *paper.TINY_VIT.split()[:3], "augment.mix_batch=2"], random_data=True)
    assert fit.config.steps == 300 * 1251 * 4


@pytest.fixture
def args():
    return SimpleNamespace(device="cpu", small=True, seconds=0, minutes=1, deadline=NEVER, model=["lm_small"])


@pytest.fixture
def failing(monkeypatch):
    """Makes a training of one precision fail at its start with what `problem(attention, micro)` gives."""

    def install(problem):
        def begin(row, args, start=paper.begin):
            if error := problem(row.attention, row.micro_batch):
                raise error
            return start(row, args)

        monkeypatch.setattr(paper, "begin", begin)
        monkeypatch.setattr(paper, "PRECISIONS", ["fp32"])

    return install


@pytest.mark.full("three trainings more")
def test_what_does_not_fit_is_tried_with_half_the_micro_batch(args, failing):
    def too_large(chosen, micro):
        return torch.OutOfMemoryError("no") if chosen == "fourier" and micro > 1 else None

    failing(too_large)
    softmax, *fourier = paper.bench(args)
    assert softmax.measured
    assert [row.micro_batch for row in fourier] == [4, 2, 1]
    assert [row.status for row in fourier[:2]] == [f"out of memory with micro_batch_size={n}" for n in (4, 2)]
    assert fourier[0].step_ms is fourier[0].time_ratio is None
    assert fourier[2].measured
    assert fourier[2].time_ratio == fourier[2].step_ms / softmax.step_ms


def test_what_never_fits_ends(args, failing):
    args.model = ["deit_tiny"]
    failing(lambda chosen, micro: KeyError("tile") if chosen == "softmax" else None)
    softmax, fourier = paper.bench(args)
    assert softmax.status == "failed: KeyError: 'tile'"
    assert fourier.measured
    assert fourier.time_ratio is None


def test_nothing_starts_when_the_time_is_up(args):
    args.deadline = 0
    assert {row.status for row in paper.bench(args)} == {"left out: the 1 minutes are used up"}


@pytest.mark.parametrize("name", ["lm_small", "deit_tiny"])
def test_the_clock_sees_every_layer_forward_and_backward_where_blocks_are_compiled(args, name):
    fit = paper.begin(paper.Row(name, "fourier", "fp32", 4, 2), args)
    fit.model.compile_blocks(backend="eager")
    layers = sum(isinstance(module, Attention) for module in fit.model.modules())
    with torch.compiler.set_stance("force_eager"), AttentionClock(fit.model, fit.device) as clock:
        fit.train_step()
    assert len(clock.marks) == 2 * layers * fit.objective.micro_steps
    assert not clock._open
    assert all(end > begin for begin, end in clock.marks)


def test_every_step_has_the_batches_of_the_first(args):
    fit = paper.begin(paper.Row("deit_tiny", "softmax", "fp32", 4, 2), args)
    first, later = list(fit.objective.micro_batches(0)), list(fit.objective.micro_batches(7))
    assert len(first) == fit.objective.micro_steps == 2
    assert all(a is b for a, b in zip(first, later, strict=True))
