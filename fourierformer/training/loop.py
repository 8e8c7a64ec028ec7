"""The one training loop: rate, micro-batches, clip, guard, step; then log, evaluate, save.

Resuming is exact. Data, learning rate and dropout depend on seed, step, micro-batch and process alone. Evaluation and
saving are at the start of an iteration, so that a resumed run does what the interrupted one had left. A stop within a
step discards its gradients and saves the state before it.

Several processes run this loop side by side, each on its share of every global batch. Common decisions (stopping, a bad
step, the best checkpoint) depend on numbers that all of them have; only the first one writes.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fourierformer.errors import Diverged, Interrupted
from fourierformer.processes import Processes
from fourierformer.seeds import seed_of
from fourierformer.tracking import Trackers
from fourierformer.training.average import MovingAverage
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerInSteps
from fourierformer.training.layers import LayerSteps
from fourierformer.training.objective import Objective, OnProgress
from fourierformer.training.optim import guarded_step, set_learning_rate
from fourierformer.training.precision import autocast
from fourierformer.training.signals import StopSignal

WAY_OUT = "Try a lower optim.lr, a longer schedule.warmup_steps, a smaller attention.radius, or trainer.precision=fp32."


@dataclass
class Progress:
    """The state of the loop that a checkpoint holds besides weights and optimizer."""

    step: int = 0
    evaluated: int = 0  # the last evaluated step
    # evaluations of the weights, "best" and "last", and of their average, "ema_best" and "ema_last", each as
    # {"step": 600, "valid_ppl": 61.2}
    records: dict[str, dict[str, float]] = field(default_factory=dict)
    bad_steps: int = 0  # steps skipped because of non-finite numbers
    train_seconds: float = 0.0
    wait_seconds: float = 0.0  # the part of train_seconds spent waiting for data


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingLoop:
    """One run of the loop. `run()` returns the progress after the last step."""

    objective: Objective
    model: nn.Module
    ema: MovingAverage | None
    optimizer: torch.optim.Optimizer
    rate: Callable[[int], float]
    config: TrainerInSteps
    seed: int
    device: torch.device
    tracker: Trackers
    checkpoints: Checkpoints
    stop: StopSignal
    data_fingerprint: str | None = None  # of the training data, kept in every checkpoint
    backend: str | None = None  # the implementation of the attention, likewise
    processes: Processes = field(default_factory=Processes)
    on_progress: OnProgress = lambda label, done, total: None
    on_log: Callable[[Progress], None] = lambda progress: None
    on_advice: Callable[[str], None] = warnings.warn  # called once with each warning of a layer's diagnostics

    def __post_init__(self):
        device = self.device
        self.shared = shared_model(self.model, self.processes, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.config.precision == "fp16")
        self.layers = LayerSteps(self.model, self.objective, device)
        self.progress = Progress()
        self.saved = 0  # the last saved step
        self.waited = 0.0  # seconds spent waiting for data in this step
        self.logged_at = (0, 0.0, 0.0)  # step, train_seconds and wait_seconds of the last log
        # on the device, and read from a GPU at log steps and at evaluations only: [sum of losses since the log, good
        # steps since the log, bad steps in all, bad steps in a row, most bad steps in a row]
        self.counters = torch.zeros(5, device=device, dtype=torch.float64)
        self.reads_each_step = device.type == "cpu"  # reading costs a host sync on a GPU, nothing on a CPU
        # torch.manual_seed, which seeds those of devices too, takes 0.3 ms where none is in use
        self.generators = torch.default_generator if device.type == "cpu" else torch
        self.parameters = list(self.model.parameters())

    def run(self) -> Progress:
        self.model.train()
        try:
            while True:
                self._boundary()
                if self._finished():
                    # fewer bad steps than max_bad_steps, but no finite evaluation
                    if "best" not in self.progress.records:
                        raise Diverged(f"diverged: no evaluation had finite numbers. {WAY_OUT}")
                    if (step := self.progress.step) < self.config.steps:
                        self.on_advice(f"training ends at step {step:,} by trainer.patience={self.config.patience}")
                    return self.progress
                started = time.perf_counter()
                norm = self.train_step()
                self._read_counters(norm, started)
        except Interrupted:
            self.optimizer.zero_grad(set_to_none=True)
            if self.saved < self.progress.step:
                self._save()
            raise

    # -- one optimizer step -----------------------------------------------------------------------------------------

    def train_step(self) -> Tensor:
        """One step of training, without logging, evaluating and saving. Returns the gradient's norm."""
        step = self.progress.step
        set_learning_rate(self.optimizer, self.rate(step + 1))  # updates count from 1
        self.layers.begin(step)
        loss = self.processes.mean(self._accumulate(step))
        self.scaler.unscale_(self.optimizer)
        norm = self._clip()
        bad = (~torch.isfinite(norm + loss)).float()
        guarded_step(self.optimizer, bad)
        self.layers.end(self.processes.sum, 1 - bad)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        self._count(loss, bad)
        self.progress.step += 1
        return norm

    def _accumulate(self, step: int) -> Tensor:
        """Add up the gradients of all micro-batches. Returns the mean loss of this process's share of the step."""
        loss = torch.zeros((), device=self.device)
        for micro, batch in enumerate(self._batches(step)):
            self.stop.poll()
            self.generators.manual_seed(seed_of(self.seed, step, micro, self.processes.rank))
            last = micro == self.objective.micro_steps - 1
            with self._exchange(last), autocast(self.device, self.config.precision):
                share, with_auxiliary = self.layers.loss(self.shared, batch)
            with self._exchange(last):
                self.scaler.scale(with_auxiliary).backward()
            loss += share.detach()
        return loss

    def _batches(self, step: int) -> Iterator:
        batches = iter(self.objective.micro_batches(step))
        for _ in range(self.objective.micro_steps):
            started = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - started
            yield batch

    def _exchange(self, last: bool) -> contextlib.AbstractContextManager:
        """The context of a micro-batch: processes exchange gradients once per step, in the last backward pass."""
        if last or not isinstance(self.shared, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.shared.no_sync()

    def _clip(self) -> Tensor:
        """Scale the gradient down to the norm `clip`, if that is set and exceeded. Returns the norm before."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.config.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norm)
        return norm

    def _count(self, loss: Tensor, bad: Tensor) -> None:
        losses, good, total, in_a_row, longest = self.counters.unbind()
        in_a_row = (in_a_row + 1) * bad
        loss = torch.where(bad > 0, torch.zeros_like(loss), loss)
        self.counters = torch.stack(
            [losses + loss, good + 1 - bad, total + bad, in_a_row, torch.maximum(longest, in_a_row)]
        )

    def _read_counters(self, norm: Tensor, started: float) -> None:
        step = self.progress.step
        log = step % self.config.log_every == 0 or step == self.config.steps
        if log or self.reads_each_step:
            losses, good, total, _, longest = self.counters.tolist()
            self.progress.bad_steps = int(total)
        self.progress.train_seconds += time.perf_counter() - started
        self.progress.wait_seconds += self.waited
        self.waited = 0.0
        if log:
            row = {"step": step, "lr": self.rate(step), "grad_norm": norm.item(), "bad_steps": int(total)}
            if good:
                row["train_loss"] = losses / good
            self.tracker.log(row | self._speed() | self._seconds())
            self.counters[:2] = 0
            self.on_log(self.progress)
        if (log or self.reads_each_step) and longest >= self.config.max_bad_steps:
            reason = f"loss or gradients were not finite {int(longest)} steps in a row"
            raise Diverged(f"diverged at step {step}: {reason}. Weights are those of the last good step. {WAY_OUT}")

    def _speed(self) -> dict[str, float]:
        """Since the last log: throughput, and the share of the time spent waiting for data."""
        step, seconds, waited = self.logged_at
        now, count = self.progress, self.objective.samples_after
        elapsed = max(now.train_seconds - seconds, 1e-9)
        per_second = (count(now.step) - count(step)) / elapsed
        row = {f"{self.objective.unit}_per_s": per_second, "data_wait": (now.wait_seconds - waited) / elapsed}
        self.logged_at = (now.step, now.train_seconds, now.wait_seconds)
        return row

    def _seconds(self) -> dict[str, float]:
        """Time spent training so far, without evaluations, for curves against time."""
        return {"seconds": round(self.progress.train_seconds, 2)}

    # -- between steps ----------------------------------------------------------------------------------------------

    def _boundary(self) -> None:
        step, config = self.progress.step, self.config
        self.stop.poll()
        if step == 0:
            return
        measured = (step % config.eval_every == 0 or step == config.steps) and self.progress.evaluated < step
        improved = measured and self._evaluate()
        due = self.saved < step and (step % config.save_every == 0 or self._finished())
        if due or improved:  # also where a stop during its evaluation has saved it, not as the best one
            self._save(best=improved)

    def _finished(self) -> bool:
        """After the last step, or after `patience` evaluations without a better one. It depends on what a checkpoint
        holds, so a resumed run ends at the same step."""
        now, config = self.progress, self.config
        waited = now.evaluated - now.records["best"]["step"] if "best" in now.records else 0
        return now.step >= config.steps or (
            config.patience is not None and waited >= config.patience * config.eval_every
        )

    def _evaluate(self) -> bool:
        step = self.progress.step
        if not self.reads_each_step:  # a GPU finishes its steps here, which is time of training
            started = time.perf_counter()
            self.progress.bad_steps = int(self.counters[2])
            self.progress.train_seconds += time.perf_counter() - started
        with autocast(self.device, self.config.precision):
            row = self._measured(self.model)
            averaged = self._measured(self.ema.module) if self.ema is not None else {}
        improved = self._record("", row)
        if averaged:
            self._record("ema_", averaged)
        self.progress.evaluated = step
        averaged = {f"ema_{name}": value for name, value in averaged.items()}
        watched, advice = self.layers.diagnostics()
        self.tracker.log({"step": step, **row, **averaged, **watched, **self._seconds()})
        for text in advice:
            self.on_advice(text)
        return improved

    def _measured(self, model: nn.Module) -> dict[str, float]:
        return self.objective.evaluate(model, self.stop.poll, self.on_progress)

    def _record(self, weights: str, numbers: dict[str, float]) -> bool:
        """Keep an evaluation as the last one, and if it is the best so far as the best. Returns whether it is."""
        value, records = numbers[self.objective.primary], self.progress.records
        entry = {"step": self.progress.step, **numbers}
        best = records.get(f"{weights}best")
        sign = -1 if self.objective.higher_is_better else 1
        finite = all(map(math.isfinite, numbers.values()))  # the primary one may be an accuracy, which is never NaN
        improved = finite and (best is None or sign * value < sign * best[self.objective.primary])
        records[f"{weights}last"] = entry
        if improved:
            records[f"{weights}best"] = dict(entry)
        return improved

    def _save(self, best: bool = False) -> None:
        self.processes.on_first(lambda: self._write_checkpoint(best))
        self.saved = self.progress.step

    def _write_checkpoint(self, best: bool) -> None:
        state = {
            "model": self.model.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "counters": self.counters,
            "objective": self.objective.state_dict(),
            "random": torch.get_rng_state(),
            "data_fingerprint": self.data_fingerprint,
            "backend": self.backend,
            "metrics_offset": self.tracker.position(),
            "metrics_check": self.tracker.last_check,
        }
        self.checkpoints.save(self.progress.step, state, best=best)

    def restore(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        now = self.progress = Progress(**state["progress"])
        self.counters = state["counters"].to(self.device)
        if state.get("objective"):  # older checkpoints have none
            self.objective.load_state_dict(state["objective"])
        torch.set_rng_state(state["random"])
        self.tracker.rewind(state["metrics_offset"], state.get("metrics_check"))
        self.saved, self.logged_at = now.step, (now.step, now.train_seconds, now.wait_seconds)


def shared_model(model: nn.Module, processes: Processes, device: torch.device) -> nn.Module:
    """A model with the parameters of `model` that averages gradients over all processes."""
    if processes.world == 1:
        return model
    devices = [device] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # its replacement would send buffers at the start, which every process has computed itself
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(model, device_ids=devices, broadcast_buffers=False, gradient_as_bucket_view=True)
