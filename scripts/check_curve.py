"""Compare short runs of softmax and Fourier attention with committed curves, to check this installation.

python scripts/check_curve.py              two runs of 200 steps: half a minute to three minutes on a CPU
python scripts/check_curve.py --record     five seeds each -> results/reference/*.csv (after a change of the recipe)
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import read_csv, write_csv
from fourierformer.printing import echo
from fourierformer.provenance import REPOSITORY, describe, header
from fourierformer.runs.console_io import Parser, exit_on_user_error

REFERENCE = REPOSITORY / "results" / "reference"
ATTENTIONS = ("softmax", "fourier")
RECORDED_SEEDS = (1, 2, 3, 4, 5)
CHECKED_SEED = 6  # not a recorded one: the band must hold for a new seed
# Band: mean over seeds ± max(4 sd, 2 %). The built-in text differs between Python versions, rounding between machines.
DEVIATIONS, RELATIVE = 4.0, 0.02

Curve = dict[int, float]  # step -> training loss
Bands = dict[int, tuple[float, float, float]]  # step -> (mean, low, high)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--record", action="store_true", help="write the reference curves anew")
    parser.add_argument("--device", default="auto", help="as trainer.device (default: auto)")
    arguments = parser.parse_args()
    with exit_on_user_error(), tempfile.TemporaryDirectory() as folder:
        if arguments.record:
            record(Path(folder), arguments.device)
        elif not check(Path(folder), arguments.device):
            sys.exit(1)


def check(folder: Path, device: str) -> bool:
    fine = True
    for attention in ATTENTIONS:
        bands = read_curve(REFERENCE / f"{attention}.csv")
        lines, good = compare(bands, train(folder, attention, CHECKED_SEED, device))
        echo("\n".join([f"\n{attention}", *lines]))
        fine &= good
    echo("\nthis installation trains as it should" if fine else "\nthis installation does NOT train as it should")
    return fine


def record(folder: Path, device: str) -> None:
    head = header("scripts/check_curve.py", ("torch", "numpy"), cpu=describe()[0]["cpu"])
    for attention in ATTENTIONS:
        runs = [train(folder, attention, seed, device) for seed in RECORDED_SEEDS]
        path = REFERENCE / f"{attention}.csv"
        write_curve(path, runs, head)
        echo(path)


def write_curve(path: Path, runs: list[Curve], head: str) -> None:
    head += f"# mean over {len(runs)} seeds; band: mean ± max({DEVIATIONS:g} sd, {RELATIVE:.0%} of the mean)\n"
    rows = []
    for step in sorted(runs[0]):
        losses = [run[step] for run in runs]
        mean, sd = statistics.fmean(losses), statistics.stdev(losses) if len(losses) > 1 else 0.0
        half = max(DEVIATIONS * sd, RELATIVE * mean)
        band = {"mean": mean, "low": mean - half, "high": mean + half}
        rows.append({"step": step} | {name: f"{value:.4f}" for name, value in band.items()})
    write_csv(path, rows, head)


def read_curve(path: Path) -> Bands:
    if not path.exists():
        raise SetupError(f"{path} is not there: run this in a clone of the repository")
    return {int(r["step"]): (float(r["mean"]), float(r["low"]), float(r["high"])) for r in read_csv(path).rows}


def compare(bands: Bands, curve: Curve) -> tuple[list[str], bool]:
    """A line per step of the reference, and whether every loss lies in its band."""
    lines, fine = [f"{'step':>5} {'loss':>8}   {'should be':>17}"], True
    for step, (_, low, high) in bands.items():
        loss = curve.get(step)
        inside = loss is not None and low <= loss <= high  # not so for NaN
        fine &= inside
        text = "missing" if loss is None else f"{loss:.4f}"
        lines.append(f"{step:5} {text:>8}   {low:.4f} to {high:.4f}{'' if inside else '   <- outside'}")
    return lines, fine


def train(folder: Path, attention: str, seed: int, device: str) -> Curve:
    """Loss by step of one short run."""
    echo(f"training {attention}, seed {seed} ...", flush=True)
    command = [sys.executable, str(REPOSITORY / "train_lm.py"), "experiment=reference_curve"]
    command += [f"attention={attention}", f"seed={seed}", f"trainer.device={device}", f"runs_root={folder}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        raise SetupError(f"the run of {attention} ended with code {done.returncode}: {done.stderr.strip()[-500:]}")
    (metrics,) = folder.glob(f"reference_curve/*-{attention}-s{seed}-*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {row["step"]: row["train_loss"] for row in rows if "train_loss" in row}


if __name__ == "__main__":
    main()
