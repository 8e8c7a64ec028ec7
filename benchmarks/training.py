"""Speed and memory of training steps: tokens or images per second of several configurations, beside the first one.

    python -m benchmarks.training attention=softmax attention=fourier
    python -m benchmarks.training attention=softmax attention=fourier --all 'model.dim=128 model.length=256'
    python -m benchmarks.training attention=softmax attention=fourier --script train_vit

Each configuration is one argument: overrides of the script, separated by spaces. They take turns in one process, every
other turn in reverse order, and a ratio is the median of the ratios of the turns. A step includes optimizer and
counters, but no evaluations and checkpoints. Memory is the peak of one step beyond weights and optimizer states, of all
tensors that operations return, without scratch inside an operation (clocks.PeakMemory).
"""

import argparse
import os
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error
from fourierformer.runs.cpu import let_threads_sleep

WARM_UP = 5  # steps


def start(script: str, overrides: list[str], *, random_data: bool = False):
    """The training loop of `python SCRIPT.py OVERRIDES` at step 0; it writes nothing.

    With `random_data` every step gets the same batches of random data of the published sizes, in memory, so that
    nothing is read, decoded, augmented or transferred.
    """
    from benchmarks.random_data import random_corpus
    from fourierformer.processes import Processes
    from fourierformer.runs.launch import composed
    from fourierformer.runs.parts import build_parts
    from fourierformer.runs.spec import read_spec
    from fourierformer.runs.train import make_loop
    from fourierformer.tracking import NoTrackers
    from fourierformer.training.checkpoint import Checkpoints
    from fourierformer.training.signals import StopSignal

    spec = read_spec(composed(script, overrides))
    corpus = random_corpus(spec) if random_data else None
    parts = build_parts(spec, Processes(), say=lambda line: None, corpus=corpus)
    if random_data:
        parts.objective = SameBatches(parts.objective)
    fit = make_loop(parts, NoTrackers(), Checkpoints(Path("never written")), StopSignal())
    fit.model.train()
    return fit


class SameBatches:
    """An objective with the batches of step 0 at every step."""

    def __init__(self, objective):
        self.objective, self.batches = objective, list(objective.micro_batches(0))
        objective.close()

    def __getattr__(self, name: str):
        return getattr(self.objective, name)

    def micro_batches(self, step: int) -> Iterator:
        return iter(self.batches)


def bench(args: argparse.Namespace) -> list[dict]:
    import torch

    from benchmarks.clocks import memory_of_step, seconds_per_step, take_turns

    if args.threads:
        torch.set_num_threads(args.threads)
    chosen = [["trainer.device=cpu", *f"{args.all} {overrides}".split()] for overrides in args.configurations]
    fits = [start(args.script, overrides) for overrides in chosen]
    for fit in fits:
        seconds_per_step(fit, WARM_UP)
    times = take_turns([partial(seconds_per_step, fit, args.steps) for fit in fits], args.turns)
    rows = []
    for overrides, fit, own in zip(args.configurations, fits, times, strict=True):
        seconds, unit, samples = statistics.median(own), fit.objective.unit, fit.objective.samples_per_step
        speed = statistics.median(first / mine for first, mine in zip(times[0], own, strict=True))
        row = {"overrides": overrides or "(defaults)", f"{unit}_per_step": samples, "milliseconds": 1e3 * seconds}
        row |= {f"{unit}_per_s": samples / seconds, "speed_ratio": speed}
        rows.append(row | {"mebibytes": memory_of_step(fit)[1]})
        rows[-1]["memory_ratio"] = rows[-1]["mebibytes"] / rows[0]["mebibytes"]
    return rows


def write(rows: list[dict], path: Path) -> None:
    import torch

    load = f"load {os.getloadavg()[0]:.1f} at the end"
    computer = f"{machine()}, {torch.get_num_threads()} threads, {load}"
    write_csv(path, rows, header("-m benchmarks.training", machine=computer))
    for row in rows:
        texts = {key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()}
        print("  ".join(f"{key} {text}" for key, text in texts.items()))


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("configurations", nargs="+", help="overrides of the script, each set quoted as one argument")
    parser.add_argument("--script", choices=["train_lm", "train_vit"], default="train_lm", help="default: %(default)s")
    parser.add_argument("--all", default="", help="overrides of all configurations")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="of each configuration in a turn")
    parser.add_argument("--threads", type=int, help="default: as in a training")
    parser.add_argument("--out", type=Path, default=MEASURED / "training_cpu.csv")
    args = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        write(bench(args), args.out)


if __name__ == "__main__":
    main()
