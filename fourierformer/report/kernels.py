"""Times of the attention kernels, from the CSV files that benchmarks/kernel.py writes."""

from itertools import groupby

from fourierformer.plots import Picture, time_chart
from fourierformer.report.section import Charts, Section, Sheet, slug
from fourierformer.results.layout import DASH

Rows = list[dict[str, str]]
HEADER = ("shape", "batch", "what", "name")
# column of the file -> what the page calls it; a file has those that its machine could give
NUMBERS = {
    "ms": "ms",
    "MiB": "MiB",
    "time x softmax": "time x\nsoftmax",
    "memory x softmax": "memory x\nsoftmax",
    "time x reference": "time x\nreference",
    "memory x reference": "memory x\nreference",
    "time x direct": "time x\ndirect",
    "of floor": "of floor",
}
SETTINGS = ("gpu", "machine", "threads", "torch", "triton", "commit", "radius", "scale", "eps")
NO_GPU = "Measured on a CPU only: no times of a GPU are committed."


def kernel_section(tables: dict[str, tuple[list[str], Rows]]) -> Section:
    parts: list[Sheet | Charts] = []
    for file, (_, rows) in tables.items():
        parts += [_sheet(file, rows), Charts(_pictures(file, rows), small=True)]
    gpus = {row["gpu"] for _, rows in tables.values() for row in rows if row.get("gpu")}
    headline = f"Measured on {', '.join(sorted(gpus))}." if gpus else NO_GPU
    return Section("Time and memory of the kernels", "kernels", parts, headline)


def _sheet(file: str, rows: Rows) -> Sheet:
    shown = [key for key in NUMBERS if any(row.get(key) for row in rows)]
    kinds = ["dtype"] if any(row.get("dtype") for row in rows) else []
    header = ["shape", "pass", "kernel", *kinds, *(NUMBERS[key] for key in shown)]
    body = [
        [_where(row, rows), row["what"], row["name"]]
        + [row.get(key) or DASH for key in kinds]
        + [_digits(row.get(key)) for key in shown]
        for row in rows
    ]
    starts = frozenset(i for i in range(1, len(rows)) if _where(rows[i], rows) != _where(rows[i - 1], rows))
    settings = [f"{key} {row_value}" for key in SETTINGS if (row_value := _common(rows, key))]
    lines = ["median times; MiB is the peak beyond the inputs", ", ".join(settings), f"from results/measured/{file}"]
    return Sheet("One line per kernel and pass.", header, body, lines, starts=starts)


def _pictures(file: str, rows: Rows) -> list[Picture]:
    pictures = []
    for where, group in groupby(rows, lambda row: _where(row, rows)):
        values: dict[str, dict[str, float]] = {}
        for row in group:
            who = f"{row['name']}, {row['dtype']}" if row.get("dtype") else row["name"]
            values.setdefault(row["what"], {})[who] = float(row["ms"])
        name = f"kernel-time-{slug(where)}--{slug(file.removesuffix('.csv'))}"
        pictures.append(time_chart(values, name, f"Time at {where}", "ms"))
    return pictures


def _where(row: dict[str, str], rows: Rows) -> str:
    """The shape, and the number of threads where the file has several."""
    several = len({other.get("threads") for other in rows}) > 1
    return f"{row['shape']}, batch {row['batch']}" + (f", threads {row['threads']}" if several else "")


def _common(rows: Rows, key: str) -> str:
    """Every value of a setting, which within one file is one."""
    return " and ".join(dict.fromkeys(row[key] for row in rows if row.get(key)))


def _digits(text: str | None) -> str:
    if not text:
        return DASH
    value = float(text)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")
