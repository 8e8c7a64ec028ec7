"""What benchmarks/attention.py says about its points: lines, tables, fitted exponents, CSV and plot."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.points import BATCH, FIT_FROM, PRECISION, WHAT, Row, claims_linear, exponent
from fourierformer.attention import mechanism
from fourierformer.files import write_csv
from fourierformer.plots.charts import Points, cost_chart
from fourierformer.provenance import header, machine

LARGEST_SLOPE = 1.15  # of what is called linear
QUANTITIES = {"milliseconds": "time_ratio", "mebibytes": "memory_ratio"}
LABELS = {"milliseconds": "milliseconds", "mebibytes": "peak MiB"}


def progress(row: Row) -> str:
    tokens = "-" if row.tokens is None else f"{row.tokens:,}"
    where = f"{tokens:>7}  {row.mask:7}{row.attention:26}{row.what:18}"
    if not row.measured:
        return where + row.status
    ratios = "" if row.time_ratio is None else f"   {row.time_ratio:.3g} and {row.memory_ratio:.3g} times softmax"
    return f"{where}{row.milliseconds:>9.4g} ms{row.mebibytes:>9.4g} MiB{ratios}"


def tables(rows: list[Row], args: argparse.Namespace) -> Iterator[str]:
    """For every mask, direction and quantity: a line for each mechanism, a column for each N."""
    measured = {(r.attention, r.mask, r.what, r.tokens): r for r in rows if r.measured}
    for mask in args.masks:
        for what in WHAT:
            for quantity in QUANTITIES:
                yield f"\n{mask}, {what}: {LABELS[quantity]} (times softmax)"
                yield f"{'N':26}" + "".join(f"{tokens:>18,}" for tokens in args.lengths)
                for name in args.names:
                    line = [measured.get((name, mask, what, tokens)) for tokens in args.lengths]
                    if any(line):
                        yield f"{name:26}" + "".join(f"{_cell(row, quantity):>18}" for row in line)


def _cell(row: Row | None, quantity: str) -> str:
    if row is None:
        return "-"
    times = getattr(row, QUANTITIES[quantity])
    return f"{getattr(row, quantity):.4g}" + ("" if times is None else f" ({times:.2g})")


def points(rows: list[Row], name: str, mask: str, what: str, quantity: str) -> list[tuple[int, float]]:
    same = (r for r in rows if r.measured and (r.attention, r.mask, r.what) == (name, mask, what))
    return [(r.tokens, getattr(r, quantity)) for r in same]


def exponents(rows: list[Row], args: argparse.Namespace) -> Iterator[str]:
    """The fitted exponents, and in words which of them contradict the stated cost."""
    columns = [(mask, what, quantity) for mask in args.masks for what in WHAT for quantity in QUANTITIES]
    flags = []
    yield f"\nExponents of N over N >= {FIT_FROM:,}: time / memory"
    yield f"{'':26}" + "".join(f"{mask:>32}" for mask in args.masks)
    directions = "".join(f"{what:>16}" for what in ("forward", "and backward"))
    yield f"{'':26}" + directions * len(args.masks) + "  stated cost"
    for name in args.names:
        slopes = {column: exponent(points(rows, name, *column)) for column in columns}
        cost = mechanism(name).cost
        texts = ["-" if slope is None else f"{slope:.2f}" for slope in slopes.values()]
        pairs = [f"{time} / {memory}" for time, memory in zip(texts[::2], texts[1::2], strict=True)]
        yield f"{name:26}" + "".join(f"{pair:>16}" for pair in pairs) + f"  {cost}"
        if claims_linear(cost):
            flags += [(name, column, s) for column, s in slopes.items() if s is not None and s > LARGEST_SLOPE]
    for name, (mask, what, quantity), slope in flags:
        yield f"ABOVE {LARGEST_SLOPE}: {name}, {mask}, {what}: {LABELS[quantity]} as N^{slope:.2f}, stated is linear"


def head(args: argparse.Namespace) -> str:
    thread = ", one thread" if args.device == "cpu" else ""
    layer = f"dim {args.dim}, {args.heads} heads, batch {BATCH[args.device]}, {PRECISION[args.device]}{thread}"
    return header("-m benchmarks.attention", machine=machine(args.device), layer=layer)


def write(rows: list[Row], origin: str, path: Path) -> None:
    write_csv(path, [asdict(row) for row in rows], origin)


def plot(rows: list[Row], args: argparse.Namespace) -> None:
    """Of training, forward and backward: time above, memory below."""

    def curves(mask: str, quantity: str) -> Points:
        lines = {name: points(rows, name, mask, WHAT[1], quantity) for name in args.names}
        return {name: line for name, line in lines.items() if line}

    panels = [(label, [(mask, curves(mask, quantity)) for mask in args.masks]) for quantity, label in LABELS.items()]
    device = "one CPU thread" if args.device == "cpu" else torch.cuda.get_device_name()
    title = (
        f"Forward and backward of one layer: dim {args.dim}, {args.heads} heads, batch {BATCH[args.device]}, {device}"
    )
    cost_chart(panels, args.out.stem, title).save(args.out.parent)
