"""The training loop, the only one: rate, micro-batches, clip, guard, step; then log, evaluate, save.

Exact resume rests on three choices. Data, learning rate and dropout are pure functions of the step, so nothing of them
is saved. All work at a step boundary (evaluate, save) happens at the TOP of the loop, so a resumed run does what the
interrupted one still owed. A stop in the middle of a step drops its half-summed gradients and saves the boundary.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from fourierformer.errors import Diverged, Interrupted, check_range
from fourierformer.tasks.base import Task, Watch
from fourierformer.tracking import Trackers
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.optim import guarded_step, set_learning_rate
from fourierformer.training.precision import Precision, autocast
from fourierformer.training.seeding import step_seed
from fourierformer.training.signals import StopSignal


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The keys of configs/trainer/*.yaml."""

    steps: int
    eval_every: int
    save_every: int
    log_every: int
    clip: float  # largest norm of the whole gradient
    max_bad_steps: int  # non-finite steps in a row before the run gives up
    micro_batch_size: int | None  # sequences per forward pass; null = the whole global batch at once
    ema_decay: float | None  # null = no averaged weights
    keep_checkpoints: int
    device: str
    precision: Precision
    compile: Literal["auto", "always", "never"]
    deterministic: bool

    def __post_init__(self):
        counts = ("steps", "eval_every", "save_every", "log_every", "max_bad_steps", "micro_batch_size")
        for key in (*counts, "keep_checkpoints"):
            check_range(f"trainer.{key}", getattr(self, key), 1)
        check_range("trainer.clip", self.clip, 0, above_low=True)
        check_range("trainer.ema_decay", self.ema_decay, 0, 1)


@dataclass
class Progress:
    """Where a run stands; everything of the loop that a checkpoint must hold besides weights and optimizer."""

    step: int = 0
    evaluated: int = 0  # the last step that was evaluated
    best: float | None = None  # lowest primary metric so far
    best_step: int = 0
    bad_steps: int = 0  # non-finite ones, skipped
    train_seconds: float = 0.0


class Fit:
    """One run of the loop. `run()` returns the progress when all steps are done."""

    def __init__(
        self,
        *,
        task: Task,
        model: nn.Module,
        ema: nn.Module | None,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
        config: TrainerConfig,
        seed: int,
        device: torch.device,
        tracker: Trackers,
        checkpoints: Checkpoints,
        stop: StopSignal,
        watch: Watch = lambda label, done, total: None,
        on_log: Callable[[Progress], None] = lambda progress: None,
    ):
        self.task, self.model, self.ema, self.optimizer, self.rate = task, model, ema, optimizer, rate
        self.config, self.seed, self.device = config, seed, device
        self.tracker, self.checkpoints, self.stop = tracker, checkpoints, stop
        self.watch, self.on_log = watch, on_log
        self.progress = Progress()
        self.saved = 0
        # Counters live on the device; a GPU's are read at log steps only: [loss since log, good steps since log,
        # bad steps in all, bad steps in a row, longest such row]
        self.counters = torch.zeros(5, device=device, dtype=torch.float64)

    def run(self) -> Progress:
        self.model.train()
        try:
            while True:
                self._boundary()
                if self.progress.step >= self.config.steps:
                    return self.progress
                started = time.perf_counter()
                norm = self._step()
                self._read_counters(norm, started)
        except Interrupted:
            self.optimizer.zero_grad(set_to_none=True)
            if self.saved < self.progress.step:
                self._save()
            raise

    # -- one optimizer step -----------------------------------------------------------------------------------------

    def _step(self) -> Tensor:
        step = self.progress.step
        set_learning_rate(self.optimizer, self.rate(step + 1))
        loss = torch.zeros((), device=self.device)
        for micro, batch in enumerate(self.task.micro_batches(step)):
            self.stop.poll()
            torch.manual_seed(step_seed(self.seed, step, micro, rank=0))
            with autocast(self.device, self.config.precision):
                part = self.task.loss(self.model, batch)
            part.backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        bad = (~torch.isfinite(norm + loss)).float()
        guarded_step(self.optimizer, bad)
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self._count(loss, bad)
        self.progress.step += 1
        return norm

    def _count(self, loss: Tensor, bad: Tensor) -> None:
        window, good, total, row, longest = self.counters.unbind()
        row = (row + 1) * bad
        loss = torch.where(bad > 0, torch.zeros_like(loss), loss)
        self.counters = torch.stack([window + loss, good + 1 - bad, total + bad, row, torch.maximum(longest, row)])

    def _read_counters(self, norm: Tensor, started: float) -> None:
        step = self.progress.step
        log = step % self.config.log_every == 0 or step == self.config.steps
        if log or self.device.type == "cpu":  # reading costs a host sync on a GPU, nothing on a CPU
            window, good, total, _, longest = self.counters.tolist()
            self.progress.bad_steps = int(total)
        self.progress.train_seconds += time.perf_counter() - started
        if log:
            row = {"step": step, "lr": self.rate(step), "grad_norm": norm.item(), "bad_steps": int(total)}
            if good:
                row["train_loss"] = window / good
            row["tokens_per_s"] = self.task.tokens_after(step) / self.progress.train_seconds
            self.tracker.log(row)
            self.counters[:2] = 0
            self.on_log(self.progress)
        if (log or self.device.type == "cpu") and longest >= self.config.max_bad_steps:
            raise Diverged(
                f"diverged at step {step}: loss or gradients were not finite {int(longest)} steps in a row. "
                "Weights are those of the last good step. Try a lower optim.lr, a longer schedule.warmup_steps, "
                "a smaller attention.radius, or trainer.precision=fp32."
            )

    # -- between steps ----------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        step, config = self.progress.step, self.config
        self.stop.poll()
        if step == 0:
            return
        last = step == config.steps
        improved = False
        if (step % config.eval_every == 0 or last) and self.progress.evaluated < step:
            improved = self._evaluate()
        due = self.saved < step and (step % config.save_every == 0 or last)
        if due or improved:  # an improved step may have been saved before, by a stop during its evaluation
            self._save(best=improved)

    def _evaluate(self) -> bool:
        step = self.progress.step
        with autocast(self.device, self.config.precision):
            row = self.task.evaluate(self.model, self.stop.poll, self.watch)
            if self.ema is not None:
                averaged = self.task.evaluate(self.ema.module, self.stop.poll, self.watch)
                row |= {f"ema_{name}": value for name, value in averaged.items()}
        value = row[self.task.primary]
        improved = value == value and (self.progress.best is None or value < self.progress.best)
        if improved:
            self.progress = replace(self.progress, best=value, best_step=step)
        self.progress.evaluated = step
        self.tracker.log({"step": step, **row, **diagnostics(self.model)})
        return improved

    def _save(self, best: bool = False) -> None:
        state = {
            "model": self.model.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "counters": self.counters,
            "random": torch.get_rng_state(),
            "metrics_offset": self.tracker.position(),
        }
        self.checkpoints.save(self.progress.step, state, best=best)
        self.saved = self.progress.step

    def restore(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.counters = state["counters"].to(self.device)
        torch.set_rng_state(state["random"])
        self.tracker.rewind(state["metrics_offset"])
        self.saved = self.progress.step


def diagnostics(model: nn.Module) -> dict[str, float]:
    """{"radius/00": 0.43, ...}: what attention layers say about themselves, by layer."""
    layers = [m for m in model.modules() if hasattr(m, "diagnostics")]
    return {f"{name}/{i:02d}": value for i, m in enumerate(layers) for name, value in m.diagnostics().items()}
