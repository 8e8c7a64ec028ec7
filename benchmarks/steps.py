"""Training steps of the paper's models at the paper's batch, Fourier attention beside softmax, on random data.

    python -m benchmarks.steps                          # on a GPU: three models, two attentions, three precisions
    python -m benchmarks.steps --device cpu --small     # tiny models, a few steps: shows that it works

A step is the training loop's own, with transfer, mixing, clipping, optimizer, averaged weights and torch.compile where
a training has them; loading data, evaluations and checkpoints come on top. `whole_hours` = whole_steps x step_ms: what
the paper's run would take on this one device at this rate. Memory is the allocator's peak; on a CPU weights, optimizer
states and what measure.PeakMemory sees beside them. `attention_share` is of a separate pass without torch.compile,
which would merge operations across layers: the time between CUDA events around the attention layers (projections
included, forward and backward) over that of the step. What does not fit is tried again with half the micro-batch.
"""

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.recipes import RECIPES, Recipe
from fourierformer.errors import UserError, short
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, REPOSITORY, header, machine

ATTENTIONS = ("softmax", "fourier")
PRECISIONS = ("bf16", "tf32", "fp32")
MEASURED_STATUS = "measured"
WARM_UP, BLOCKS, MOST_STEPS, WATCHED = 3, 3, 20, 2  # steps; times to take the median of; steps in each; in the pass
SMALL_BATCH = 4


@dataclass
class Row:
    """One configuration, or why it was not measured. Ratios are to softmax in the same precision and run."""

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
    """The precision that is most used on a GPU first, so that what the time is too short for matters least."""
    for precision in PRECISIONS:
        for model in args.model:
            softmax = None
            for chosen in ATTENTIONS:
                for row in attempts(model, chosen, precision, args):
                    softmax = row if row.measured and chosen == "softmax" else softmax
                    compare(row, softmax)
                    yield row


def attempts(model: str, chosen: str, precision: str, args: argparse.Namespace) -> Iterator[Row]:
    """One row, and before it one for each size of micro-batch that did not fit."""
    recipe = replace(RECIPES[model], batch=SMALL_BATCH) if args.small else RECIPES[model]
    least = 2 if recipe.script == "train_vit" else 1  # images are mixed in pairs
    micro = recipe.batch
    while True:
        row = Row(f"{model}, tiny" if args.small else model, chosen, precision, recipe.batch, micro)
        attempt(row, recipe, args)
        yield row
        if not row.status.startswith("out of memory") or micro == least:
            return
        micro = max(micro // 2, least)


def attempt(row: Row, recipe: Recipe, args: argparse.Namespace) -> None:
    """Measures, or says in the row why not. One that fails does not take the others with it."""
    import torch

    if time.monotonic() > args.deadline:
        row.status = f"left out: the {args.minutes:g} minutes are used up"
        return
    torch.compiler.reset()  # a function is compiled only so many times
    try:
        measure(row, recipe, args)
    except torch.OutOfMemoryError:
        row.status = f"out of memory with micro_batch_size={row.micro_batch}"
    except Exception as error:
        traceback.print_exc()
        row.status = f"failed: {short(error)}"
    if args.device == "cuda":
        torch.cuda.empty_cache()


def measure(row: Row, recipe: Recipe, args: argparse.Namespace) -> None:
    import torch

    from benchmarks.measure import peak_of_step, seconds_per_step
    from benchmarks.trainings import start
    from fourierformer.attention.base import layers_of

    device = torch.device(args.device)
    fit = start(recipe, row.attention, row.precision, device, row.micro_batch, small=args.small)
    seconds_per_step(fit, WARM_UP)  # compiles
    steps = max(1, min(MOST_STEPS, int(args.seconds / BLOCKS / seconds_per_step(fit, 1))))
    mebibytes, times = peak_of_step(fit), [seconds_per_step(fit, steps) for _ in range(BLOCKS)]
    seconds = statistics.median(times)
    row.backend = layers_of(fit.model)[0].backend_name(device)
    row.step_ms, row.mebibytes = 1e3 * seconds, mebibytes
    row.unit, row.per_second = fit.objective.unit, fit.objective.samples_per_step / seconds
    row.whole_steps, row.whole_hours = recipe.whole_steps, recipe.whole_steps * seconds / 3600
    row.attention_share = attention_share(fit)


def attention_share(fit) -> float | None:
    """None where the pass does not fit: without torch.compile more has to be kept."""
    import torch

    from benchmarks.measure import AttentionClock, seconds_per_step

    try:
        with torch.compiler.set_stance("force_eager"), AttentionClock(fit.model, fit.device) as clock:
            fit.train_step()
            clock.reset()
            whole = WATCHED * seconds_per_step(fit, WATCHED)
            return clock.seconds() / whole
    except torch.OutOfMemoryError:
        return None


def compare(row: Row, softmax: Row | None) -> None:
    if row.measured and softmax:
        row.time_ratio = row.step_ms / softmax.step_ms
        row.memory_ratio = row.mebibytes / softmax.mebibytes


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", action="append", choices=RECIPES, help="may be given several times; default: all")
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
    args.model = args.model or list(RECIPES)
    args.seconds = 0 if args.small else args.seconds
    args.deadline = time.monotonic() + 60 * args.minutes
    return args


def main() -> bool:
    args = arguments()
    rows: list[Row] = []
    head = header("-m benchmarks.steps", machine=machine(args.device))
    try:
        for row in bench(args):
            rows.append(row)
            print(progress(row), flush=True)
            write_csv(args.out, [asdict(row) for row in rows], head)
    except UserError as error:
        sys.exit(f"error: {error}")
    return not any(row.status.startswith("failed") for row in rows)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
