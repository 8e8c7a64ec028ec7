"""Time and memory of every attention by the number of tokens, drawn from a CSV file of benchmarks/attention.py."""

from pathlib import Path

from fourierformer.files import CsvFile, checksum, read_csv
from fourierformer.report.charts import Dots, dot_chart
from fourierformer.report.picture import Picture

PEER = "softmax"
QUANTITIES = {"milliseconds": "ms", "mebibytes": "peak MiB"}
MOST_LENGTHS = 4  # of seven every other one is drawn


def cost_picture(path: Path) -> Picture | None:
    """A line for each attention, a panel for each mask and quantity, a dot for each number of tokens; forward and
    backward together. None where nothing was measured."""
    file = read_csv(path)
    rows = [row for row in file.rows if row["status"] == "measured" and row["what"] == "forward+backward"]
    if not rows:
        return None
    lengths = sorted({int(row["tokens"]) for row in rows})
    lengths = lengths[:: -(-len(lengths) // MOST_LENGTHS)]
    masks = list(dict.fromkeys(row["mask"] for row in rows))
    panels = []
    for quantity, unit in QUANTITIES.items():
        for mask in masks:
            panels.append((mask, unit, _dots([row for row in rows if row["mask"] == mask], quantity, lengths)))
    title = f"Forward and backward of one layer: {_noted(file, 'layer')}; {_noted(file, 'machine')}"
    described = checksum([panels, title])[:16]
    return dot_chart(panels, _ranked(rows), path.stem, title, PEER, described)


def _dots(rows: list[dict[str, str]], quantity: str, lengths: list[int]) -> Dots:
    dots: Dots = {f"N = {length:,}": {} for length in lengths}
    for row in rows:
        if int(row["tokens"]) in lengths:
            dots[f"N = {int(row['tokens']):,}"][row["attention"]] = float(row[quantity])
    return dots


def _ranked(rows: list[dict[str, str]]) -> list[str]:
    """Names by the number of tokens that they reach, the largest first, then by the time that this takes."""
    reached: dict[str, tuple[int, float]] = {}
    for row in rows:
        place = -int(row["tokens"]), float(row["milliseconds"])
        reached[row["attention"]] = min(place, reached.get(row["attention"], place))
    return sorted(reached, key=reached.__getitem__)


def _noted(file: CsvFile, key: str) -> str:
    """The value of `key: value` in the comments."""
    return next((line.partition(": ")[2] for line in file.comments if line.startswith(f"{key}: ")), f"unknown {key}")
