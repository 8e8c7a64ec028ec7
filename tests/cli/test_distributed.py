"""Several processes on one run, over gloo: the same numbers as alone, checkpoints that any number of them resumes, one
that writes."""

import os
import signal

import pytest
import torch

from tests.helpers.command_line import IMAGES, MODEL, only_run, rows, start, status, together, train_lm, train_vit

IMAGE_STEPS = ("trainer.steps=6", "trainer.eval_every=3", "trainer.save_every=3", "trainer.ema_decay=0.9")


def text_run(small_text) -> tuple[str, ...]:
    """Without dropout, whose masks are drawn per process."""
    model = (*MODEL, *small_text, "data.cutoffs=[10,20]")  # some steps have no word of a cluster on some process
    return (*model, "global_batch_size=4", "model.dropout=0", "attention=fourier")


@pytest.fixture(scope="module")
def alone(small_text, tmp_path_factory):
    """{script: rows of one process}."""
    root = tmp_path_factory.mktemp("alone")
    assert train_vit(*IMAGES, *IMAGE_STEPS, f"runs_root={root / 'images'}") == 0
    assert train_lm(*text_run(small_text), f"runs_root={root / 'text'}") == 0
    return {"train_vit": only_run(root / "images"), "train_lm": only_run(root / "text")}


def assert_equal_numbers(run, expected, tolerance=1e-6):
    actual, expected_rows = rows(run), rows(expected)
    assert [row.keys() for row in actual] == [row.keys() for row in expected_rows]
    for one, other in zip(actual, expected_rows, strict=True):
        for key in one:
            # gradients of single layers nearly cancel, which leaves their norm fewer digits
            rel = 100 * tolerance if key == "grad_norm" else tolerance
            assert one[key] == pytest.approx(other[key], rel=rel, abs=tolerance), (key, one["step"])


@pytest.mark.full("two processes that augment")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full("once more with four processes"))])
def test_images_with_every_augmentation_train_to_the_same_losses(world, alone, tmp_path):
    assert together(world, "train_vit", *IMAGES, *IMAGE_STEPS, f"runs_root={tmp_path}") == [0] * world
    assert_equal_numbers(only_run(tmp_path), alone["train_vit"])


@pytest.mark.full("two processes, once more")
def test_accumulating_micro_batches_on_two_processes_changes_nothing(alone, tmp_path):
    """micro_batch_size is part of a run's identity, since a language model's dropout depends on it; losses do not."""
    arguments = (*IMAGES, *IMAGE_STEPS, "trainer.micro_batch_size=2", f"runs_root={tmp_path}")
    assert together(2, "train_vit", *arguments) == [0, 0]
    assert_equal_numbers(only_run(tmp_path), alone["train_vit"])


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full("once more with four processes"))])
def test_text_trains_to_the_same_losses(world, small_text, alone, tmp_path):
    assert together(world, "train_lm", *text_run(small_text), f"runs_root={tmp_path}") == [0] * world
    assert_equal_numbers(only_run(tmp_path), alone["train_lm"])


@pytest.mark.full("two processes, twice")
@pytest.mark.parametrize("attention", ["routing", "sac"])
def test_layers_that_draw_and_learn_from_statistics_train_to_the_same_losses(attention, small_text, tmp_path):
    arguments = (*text_run(small_text), f"attention={attention}")
    assert train_lm(*arguments, f"runs_root={tmp_path / 'one'}") == 0
    assert together(2, "train_lm", *arguments, f"runs_root={tmp_path / 'two'}") == [0, 0]
    assert_equal_numbers(only_run(tmp_path / "two"), only_run(tmp_path / "one"))


def stopped_at(step: int, world: int, root, monkeypatch) -> None:
    """A run of `world` processes that gets a signal to stop before it has trained `step` + 1 steps."""
    from fourierformer.training.loop import TrainingLoop

    boundary = TrainingLoop._boundary

    def stop_here(fit):
        if fit.progress.step == step and fit.processes.first:
            fit.stop.signal_number = signal.SIGTERM  # the first process alone knows: all of them have to agree
        boundary(fit)

    monkeypatch.setattr(TrainingLoop, "_boundary", stop_here)
    arguments = (*IMAGES, *IMAGE_STEPS, f"runs_root={root}")
    codes = together(world, "train_vit", *arguments) if world > 1 else [train_vit(*arguments)]
    monkeypatch.setattr(TrainingLoop, "_boundary", boundary)
    assert codes == [143] * world
    assert status(only_run(root))["step"] == step


@pytest.mark.full("two processes, then one")
@pytest.mark.parametrize(
    ("before", "after"), [(2, 1), *(pytest.param(*n, marks=pytest.mark.full("once more")) for n in ((1, 2), (2, 4)))]
)
def test_another_number_of_processes_resumes(before, after, alone, tmp_path, monkeypatch):
    stopped_at(4, before, tmp_path, monkeypatch)
    arguments = (*IMAGES, *IMAGE_STEPS, f"runs_root={tmp_path}")
    codes = together(after, "train_vit", *arguments) if after > 1 else [train_vit(*arguments)]
    assert codes == [0] * after
    assert_equal_numbers(only_run(tmp_path), alone["train_vit"])


def test_a_batch_that_cannot_be_shared_is_refused_once(tmp_path, capfd):
    assert together(3, "train_vit", *IMAGES, f"runs_root={tmp_path}") == [2, 2, 2]
    error = capfd.readouterr().err
    assert error.count("global_batch_size=8 cannot be shared equally by 3 processes") == 1
    assert not list(tmp_path.iterdir())


def test_missing_data_is_reported_once(tmp_path, capfd):
    codes = together(2, "train_vit", *IMAGES, "data=cifar10", "data.root=/nowhere", f"runs_root={tmp_path}")
    assert codes == [2, 2]
    error = capfd.readouterr().err
    assert error.count("error: ") == 1
    assert "Traceback" not in error


@pytest.mark.full("two processes for one line")
def test_a_sweep_under_torchrun_is_refused(tmp_path, capfd):
    codes = together(2, "train_vit", "-m", *IMAGES, "seed=1,2", f"runs_root={tmp_path}")
    assert codes == [2, 2]
    assert "start each run with torchrun by itself" in capfd.readouterr().err


@pytest.mark.full("several processes, several starts")
def test_sigterm_to_torchrun_saves_once(alone, tmp_path):
    """Real torchrun: the agent hands the signal to its workers, which agree on a step."""
    long = (*IMAGES, "trainer.steps=2000", "trainer.eval_every=1000", "trainer.save_every=1000")
    process = start(*long, f"runs_root={tmp_path}", script="train_vit", world=2)
    for line in process.stdout:
        if "loss" in line:
            break
    os.kill(process.pid, signal.SIGTERM)  # torchrun itself; its workers are in sessions of their own
    output, _ = process.communicate(timeout=100)
    run = only_run(tmp_path)
    assert output.count("the same command resumes") == 1, output
    assert output.count("stopping after this micro-step") == 1
    assert status(run)["state"] == "interrupted"
    (checkpoint,) = (run / "checkpoints").iterdir()
    state = torch.load(checkpoint / "state.pt", weights_only=True)
    assert state["progress"]["step"] == status(run)["step"] > 0
