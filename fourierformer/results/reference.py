"""Reference curves: how the loss of a short run should fall, committed with a band, to hold an installation against."""

import csv
import io
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import atomic_write_text
from fourierformer.provenance import REPOSITORY
from fourierformer.results import statistics

REFERENCE = REPOSITORY / "results" / "reference"
COLUMNS = ("step", "mean", "low", "high")
# The band is the mean over seeds ± the larger of four standard deviations and 2 %: the embedded text differs a little
# between Python versions, and rounding between machines.
DEVIATIONS, RELATIVE = 4.0, 0.02

Curve = dict[int, float]  # step -> training loss


def write_curve(path: Path, runs: list[Curve], facts: dict) -> None:
    text = io.StringIO()
    for name, value in facts.items():
        text.write(f"# {name}: {value}\n")
    text.write(f"# mean over {len(runs)} seeds; band: mean ± max({DEVIATIONS:g} sd, {RELATIVE:.0%} of the mean)\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step in sorted(runs[0]):
        mean, half = _band([run[step] for run in runs])
        writer.writerow([step, *(f"{value:.4f}" for value in (mean, mean - half, mean + half))])
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, text.getvalue())


def read_curve(path: Path) -> dict[int, tuple[float, float, float]]:
    """Step -> (mean, low, high)."""
    if not path.exists():
        raise SetupError(f"{path} is not there: run this in a clone of the repository")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    curve = {}
    for row in csv.DictReader(lines):
        mean, low, high = (float(row[key]) for key in COLUMNS[1:])
        curve[int(row["step"])] = mean, low, high
    return curve


def compare(reference: dict[int, tuple[float, float, float]], found: Curve) -> tuple[list[str], bool]:
    """A line per step of the reference, and whether every loss lies in its band."""
    lines, fine = [f"{'step':>5} {'loss':>8}   {'should be':>17}"], True
    for step, (_, low, high) in reference.items():
        loss = found.get(step)
        inside = loss is not None and low <= loss <= high  # not so for NaN
        fine &= inside
        told = "missing" if loss is None else f"{loss:.4f}"
        lines.append(f"{step:5} {told:>8}   {low:.4f} to {high:.4f}{'' if inside else '   <- outside'}")
    return lines, fine


def _band(values: list[float]) -> tuple[float, float]:
    mean = statistics.mean(values)
    return mean, max(DEVIATIONS * (statistics.sd(values) or 0.0), RELATIVE * mean)
