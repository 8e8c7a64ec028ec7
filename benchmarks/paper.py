"""Training steps of the paper's models at the paper's batch, Fourier attention beside softmax, on random data.

    python -m benchmarks.paper                          # on a GPU: three models, two attentions, three precisions
    python -m benchmarks.paper --device cpu --small     # tiny models, a few steps: shows that it works

Configs are composed as in a training, so this needs hydra-core. A step is a step of the training loop, with clipping,
optimizer, averaged weights and torch.compile where a training has them. Its batches are in memory: times exclude
loading and augmenting data, evaluations and checkpoints. `whole_hours` = whole_steps x step_ms: the time of the paper's
run on this one device. Memory: weights, optimizer states, and the peak of a step beside them (the allocator's; on a CPU
clocks.PeakMemory's). `attention_share`: time between CUDA events around the attention layers (projections included,
forward and backward) over the time of the step, in a separate pass without torch.compile, which would merge operations
across layers. A configuration that runs out of memory is tried again with half the micro-batch. On a GPU every
configuration has its own process, so that an error affects no other.
"""

import argparse
import importlib.util
import itertools
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.apart import APART, Ended, apart
from benchmarks.training import start
from fourierformer.errors import SetupError, short
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, REPOSITORY, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error

ATTENTIONS = ("softmax", "fourier")
PRECISIONS = ("bf16", "tf32", "fp32")
MEASURED_STATUS = "measured"
WARM_UP, BLOCKS, MOST_STEPS, WATCHED = 3, 3, 20, 2  # steps; times to take the median of; steps in each; in the pass


@dataclass(frozen=True)
class Model:
    """One of the paper's trainings on one GPU."""

    script: str
    overrides: str
    batch: int  # sequences or images in a step
    least: int  # smallest micro-batch
    small: str  # overrides that shrink it


TINY_LM = "model.layers=2 model.dim=16 model.heads=2 model.inner=16 model.length=16"
TINY_VIT = "model.image_size=32 model.dim=48 model.depth=2 augment.mix_batch=4"
MODELS = {
    "lm_small": Model("train_lm", "experiment=wt103_small", 96, 1, TINY_LM),
    "lm_medium": Model("train_lm", "experiment=wt103_medium", 56, 1, TINY_LM),
    # the paper's four GPUs have 256 images each; images are mixed in pairs
    "deit_tiny": Model("train_vit", "experiment=imagenet_deit_tiny data.workers=0", 256, 2, TINY_VIT),
}
SMALL_BATCH = 4


@dataclass
class Row:
    """One configuration, or the reason why it was not measured. Ratios are to softmax in the same precision and run."""

    model: str
    attention: str
    precision: str
    batch: int
    micro_batch: int
    status: str = MEASURED_STATUS
    backend: str | None = None
    step_ms: float | None = None
    unit: str | None = None
    per_second: float | None = None
    mebibytes: float | None = None
    attention_share: float | None = None
    time_ratio: float | None = None
    memory_ratio: float | None = None
    whole_steps: int | None = None
    whole_hours: float | None = None

    @property
    def measured(self) -> bool:
        return self.status == MEASURED_STATUS


def bench(args: argparse.Namespace) -> Iterator[Row]:
    """Yield all rows; the precision most used on a GPU comes first, in case the time is too short for all."""
    for precision, model in itertools.product(PRECISIONS, args.model):
        softmax = None
        for chosen in ATTENTIONS:
            for row in attempts(model, chosen, precision, args):
                softmax = row if row.measured and chosen == "softmax" else softmax
                if row.measured and softmax:
                    row.time_ratio = row.step_ms / softmax.step_ms
                    row.memory_ratio = row.mebibytes / softmax.mebibytes
                yield row


def attempts(model: str, chosen: str, precision: str, args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each size of micro-batch that did not fit, and the row of the size that does."""
    micro = batch = SMALL_BATCH if args.small else MODELS[model].batch
    while True:
        row = Row(model, chosen, precision, batch, micro)
        if time.monotonic() > args.deadline:
            row.status = f"left out: the {args.minutes:g} minutes are used up"
        else:
            try:
                (row,) = apart(attempt, row, args) if args.device in APART else attempt(row, args)
            except Ended as error:
                row.status = f"failed: it {error}"
        row.model = f"{model}, tiny" if args.small else model
        yield row
        if not row.status.startswith("out of memory") or micro == MODELS[model].least:
            return
        micro = max(micro // 2, MODELS[model].least)


def attempt(row: Row, args: argparse.Namespace) -> Iterator[Row]:
    """Yield the row with its numbers, or with the reason why it has none."""
    import torch

    try:
        measure(row, args)
    except torch.OutOfMemoryError:
        row.status = f"out of memory with micro_batch_size={row.micro_batch}"
    except Exception as error:
        traceback.print_exc()
        row.status = f"failed: {short(error)}"
    yield row


def measure(row: Row, args: argparse.Namespace) -> None:
    from benchmarks.clocks import memory_of_step, seconds_per_step
    from fourierformer.attention.base import layers_of

    fit = begin(row, args)
    seconds_per_step(fit, WARM_UP)  # compiles
    steps = max(1, min(MOST_STEPS, int(args.seconds / BLOCKS / seconds_per_step(fit, 1))))
    seconds = statistics.median(seconds_per_step(fit, steps) for _ in range(BLOCKS))
    row.mebibytes = sum(memory_of_step(fit))
    row.backend = layers_of(fit.model)[0].backend_name(fit.device)
    row.step_ms, row.unit = 1e3 * seconds, fit.objective.unit
    row.per_second = fit.objective.samples_per_step / seconds
    row.whole_steps, row.whole_hours = fit.config.steps, fit.config.steps * seconds / 3600
    row.attention_share = attention_share(fit)


def begin(row: Row, args: argparse.Namespace):
    return start(MODELS[row.model].script, overrides_of(row, args), random_data=True)


def overrides_of(row: Row, args: argparse.Namespace) -> list[str]:
    model = MODELS[row.model]
    values = {"attention": row.attention, "trainer.precision": row.precision, "trainer.device": args.device}
    values |= {"global_batch_size": row.batch, "trainer.micro_batch_size": row.micro_batch}
    chosen = [*model.overrides.split(), *(model.small.split() if args.small else [])]
    return [*chosen, *(f"{key}={value}" for key, value in values.items())]


def attention_share(fit) -> float | None:
    """None where the pass does not fit: without torch.compile it needs more memory."""
    import torch

    from benchmarks.clocks import AttentionClock, seconds_per_step

    try:
        with torch.compiler.set_stance("force_eager"), AttentionClock(fit.model, fit.device) as clock:
            fit.train_step()
            clock.marks.clear()
            whole = WATCHED * seconds_per_step(fit, WATCHED)
            return clock.seconds() / whole
    except torch.OutOfMemoryError:
        return None


def progress(row: Row) -> str:
    what = f"{row.model:15} {row.attention:8} {row.precision:5} micro-batch {row.micro_batch:>3}  "
    if not row.measured:
        return what + row.status
    ratio = "" if row.time_ratio is None else f", {row.time_ratio:.3g} times softmax"
    share = "" if row.attention_share is None else f", {row.attention_share:.0%} attention"
    return (
        f"{what}{row.step_ms:.4g} ms{ratio}, {row.per_second:,.0f} {row.unit}/s, {row.mebibytes:,.0f} MiB{share}, "
        f"whole run {row.whole_hours:,.3g} h"
    )


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", action="append", choices=MODELS, help="may be given several times; default: all")
    parser.add_argument("--small", action="store_true", help="tiny models and batches")
    parser.add_argument("--seconds", type=float, default=3, help="for the timed steps of a configuration")
    parser.add_argument("--minutes", type=float, default=8, help="no configuration is started later")
    default = "results/measured/gpu_training.csv; with --small or on a CPU in runs/"
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"CSV; default: {default}")
    args = parser.parse_args()
    import torch  # after --help

    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU: --device cpu --small runs a tiny form")
    if args.device == "cpu" and not args.small:
        parser.error("--device cpu goes with --small: the paper's models take hours there")
    part = args.small or args.device == "cpu" or args.model
    args.out = args.out or (REPOSITORY / "runs" if part else MEASURED) / "gpu_training.csv"
    args.model = args.model or list(MODELS)
    args.seconds = 0 if args.small else args.seconds
    args.deadline = time.monotonic() + 60 * args.minutes
    return args


def main() -> bool:
    args = arguments()
    rows: list[Row] = []
    head = header("-m benchmarks.paper", machine=machine(args.device))
    with exit_on_user_error():
        if not importlib.util.find_spec("hydra"):  # on a machine that has torch, Triton and timm only
            raise SetupError(
                "hydra-core, which composes the models' configs, is not installed: pip install hydra-core. Without a "
                "network: `pip wheel hydra-core` on another machine, and here `pip install` with its files"
            )
        for row in bench(args):
            rows.append(row)
            print(progress(row), flush=True)
            write_csv(args.out, [asdict(row) for row in rows], head)
    return not any(row.status.startswith("failed") for row in rows)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
