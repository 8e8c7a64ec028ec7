"""A training step does not make the host wait for the GPU: it reads numbers at log steps only."""

import sys
from functools import partial
from unittest.mock import patch

import pytest
import torch

from fourierformer.processes import Processes
from fourierformer.runs.parts import build_parts
from fourierformer.runs.train import make_loop
from fourierformer.tracking import NoTrackers
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.loop import TrainingLoop
from fourierformer.training.signals import StopSignal
from fourierformer.transfer import to_device
from tests.helpers.command_line import IMAGES, MODEL, spec_of
from tests.helpers.host_reads import HostReads

STEPS, LOGGED = 7, {3, 6, 7}
RHYTHM = ("trainer.log_every=3", "trainer.eval_every=4", "trainer.save_every=100", "trainer.ema_decay=0.9")
VARIETY = ("trainer.micro_batch_size=2", "global_batch_size=4")
TASKS = {
    # adaptive softmax: rows of rare words are found on the host
    "train_lm": (*MODEL, "model.dropout=0.1", "data=builtin_text", "data.cutoffs=[100,1000]"),
    "train_vit": (*IMAGES, "trainer.clip=0.25"),
}
CASES = [(script, attention) for script in TASKS for attention in ("softmax", "fourier")]


def start(script: str, attention: str, directory, device: str = "cpu") -> TrainingLoop:
    overrides = [*TASKS[script], *RHYTHM, *VARIETY, f"trainer.steps={STEPS}", f"trainer.device={device}"]
    spec = spec_of(*overrides, f"attention={attention}", script=script)
    parts = build_parts(spec, Processes(), say=lambda line: None)
    return make_loop(parts, NoTrackers(), Checkpoints(directory), StopSignal())


def watched(fit: TrainingLoop) -> list[tuple[object, str]]:
    """The reads of a run, as (number of the step, or None between steps; operation)."""
    step, boundary, home = fit.train_step, fit._boundary, sys.modules[type(fit.objective).__module__]
    fit.reads_each_step = False  # as on a GPU
    fit.model.train()
    step()  # makes the optimizer's states
    states = [number for state in fit.optimizer.state.values() for number in state.values()]
    average = fit.ema.module.state_dict()
    with HostReads(fit.counters, states, average, fit.model.state_dict()) as reads:

        def labelled(action, between_steps):
            def run(*arguments):
                reads.label = None if between_steps else fit.progress.step + 1
                return action(*arguments)

            return run

        fit.train_step, fit._boundary = labelled(step, False), labelled(boundary, True)
        if stream := getattr(fit.objective, "_stream", None):  # images are loaded and transformed on the host
            fit.objective._stream = reads.elsewhere(stream)
        with patch.object(home, "to_device", lambda *arguments: reads.sent(to_device(*arguments))):
            fit.run()
    fit.objective.close()
    return reads.operations


@pytest.mark.parametrize(
    ("script", "attention"),
    [
        case if case == ("train_lm", "fourier") else pytest.param(*case, marks=pytest.mark.full("once more"))
        for case in CASES
    ],
)
def test_only_log_steps_read_what_is_on_the_device(script, attention, tmp_path):
    operations = watched(start(script, attention, tmp_path))
    assert {label for label, _ in operations if label is not None} == LOGGED
    # the counters and the gradient's norm, at each of them: the watch does see what is read
    assert [what for label, what in operations if label == 6] == ["tolist", "aten._local_scalar_dense.default"]


def item(loss):
    return loss * (1 if loss.item() < 1e9 else 0)


def comparison(loss):
    return loss if loss < 1e9 else -loss


def mask(loss):
    values = loss.reshape(1)
    return values[values < 1e9].sum()


def listed(loss):
    return loss + 0 * sum(loss.detach().reshape(1).tolist())


def on_the_host(loss):
    return loss + 0 * loss.cpu()


def blocking_transfer(loss):
    return loss + torch.tensor(0.0).to(loss.device)


def made_on_the_device(loss):
    return loss + torch.tensor(0.0, device=loss.device)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (item, "aten._local_scalar_dense.default"),
        (mask, "aten.index.Tensor"),
        *(
            pytest.param(*case, marks=pytest.mark.full("another way to wait"))
            for case in [
                (blocking_transfer, "to"),
                (comparison, "aten._local_scalar_dense.default"),
                (listed, "tolist"),
                (on_the_host, "cpu"),
                (made_on_the_device, "tensor"),
            ]
        ),
    ],
)
def test_a_loss_that_waits_is_found(spoil, what, tmp_path):
    fit = start("train_lm", "softmax", tmp_path)
    loss = fit.objective.loss
    fit.objective.loss = lambda model, batch: spoil(loss(model, batch))
    assert (2, what) in watched(fit)


def test_a_hidden_wait_in_the_backward_pass_is_found(tmp_path):
    fit = start("train_lm", "softmax", tmp_path)
    fit.model.embedding.weight.register_hook(lambda gradient: gradient * (gradient.sum().item() < 1e9))
    assert (2, "aten._local_scalar_dense.default") in watched(fit)


@pytest.mark.full("torch's own, which is not used")
def test_torchs_own_average_would_wait(tmp_path):
    """Why there is training/average.py."""
    fit = start("train_lm", "softmax", tmp_path)
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    fit.ema = torch.optim.swa_utils.AveragedModel(fit.model, multi_avg_fn=ema)
    assert (2, "to") in watched(fit)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("script", "attention"), CASES)
def test_on_a_gpu_torch_finds_no_wait_either(script, attention, tmp_path):
    fit = start(script, attention, tmp_path, "cuda")
    fit.model.train()
    for _ in range(3):  # compiles, tunes, makes the optimizer's states
        fit.train_step()
    torch.cuda.synchronize()
    reader = partial(fit._read_counters, started=0.0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            reader(fit.train_step())
        with pytest.raises(RuntimeError, match="synchroniz"):
            reader(fit.train_step())  # step 6 is a log step
    finally:
        torch.cuda.set_sync_debug_mode("default")
        fit.objective.close()
