"""Times of kernels, measured without training a model, from committed CSV files."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import CsvFile, read_csv
from fourierformer.report.charts import time_chart
from fourierformer.report.picture import Picture
from fourierformer.report.section import Charts, Section, slug
from fourierformer.results.formats import DASH, Table

Rows = list[dict[str, str]]
KERNEL_COLUMNS = ("shape", "batch", "what", "name")  # by which a file of benchmarks/kernel.py is recognised
KERNEL_NUMBERS = (  # a file has those that its machine could give
    *("ms", "MiB", "time x softmax", "memory x softmax", "time x reference", "memory x reference", "time x direct"),
    "of floor",
)
KERNEL_SETTINGS = ("gpu", "machine", "threads", "torch", "triton", "commit", "radius", "scale", "eps")
NO_GPU = "Measured on a CPU only."


def committed_sections(files: Iterable[Path]) -> list[Section]:
    """Sections of the CSV files that a user names. Files of runs are skipped: they have sections of their own."""
    kernels = {path: file for path in sorted(files) if _is_of_kernels(file := read_csv(path))}
    try:
        return [_kernel_section(kernels)] if kernels else []
    except (KeyError, ValueError, TypeError) as error:
        raise SetupError(
            f"{', '.join(map(str, kernels))}: not as its script writes it ({error!r}). Restore it from git."
        ) from None


def _is_of_kernels(file: CsvFile) -> bool:
    return bool(file.rows) and tuple(file.columns)[: len(KERNEL_COLUMNS)] == KERNEL_COLUMNS


def _kernel_section(files: dict[Path, CsvFile]) -> Section:
    parts: list[Table | Charts] = []
    for path, file in files.items():
        parts += [_kernel_table(path, file.rows), Charts(_kernel_pictures(path.stem, file.rows), small=True)]
    devices = {row.get("gpu") or "a CPU" for file in files.values() for row in file.rows}
    headline = NO_GPU if devices == {"a CPU"} else f"Measured on {' and '.join(sorted(devices))}."
    return Section("Time and memory of the kernels", "kernels", parts, headline)


def _kernel_table(path: Path, rows: Rows) -> Table:
    shown = [key for key in KERNEL_NUMBERS if any(row.get(key) for row in rows)]
    kinds = ["dtype"] if any(row.get("dtype") for row in rows) else []
    header = ["shape", "pass", "kernel", *kinds, *(key.replace(" x ", " x\n") for key in shown)]
    body = [
        [_shape(row, rows), row["what"], row["name"]]
        + [row.get(key) or DASH for key in kinds]
        + [_digits(row.get(key)) for key in shown]
        for row in rows
    ]
    starts = {i for i in range(1, len(body)) if body[i][0] != body[i - 1][0]}
    # within one file a setting has one value, but for the number of threads
    values = {key: " and ".join(dict.fromkeys(row[key] for row in rows if row.get(key))) for key in KERNEL_SETTINGS}
    settings = ", ".join(f"{key} {value}" for key, value in values.items() if value)
    lines = ["median times; MiB is the peak beyond the inputs", settings, f"from {path}"]
    return Table("One line per kernel and pass.", [], header, body, starts=starts, notes=lines)


def _kernel_pictures(name: str, rows: Rows) -> list[Picture]:
    pictures = []
    for shape, group in groupby(rows, lambda row: _shape(row, rows)):
        values: dict[str, dict[str, float]] = {}
        for row in group:
            who = f"{row['name']}, {row['dtype']}" if row.get("dtype") else row["name"]
            values.setdefault(row["what"], {})[who] = float(row["ms"])
        pictures.append(time_chart(values, f"kernel-time-{slug(shape)}--{slug(name)}", f"Time at {shape}", "ms"))
    return pictures


def _shape(row: dict[str, str], rows: Rows) -> str:
    """The title, with the number of threads where the file has several."""
    several = len({other.get("threads") for other in rows}) > 1
    return f"{row['shape']}, batch {row['batch']}" + (f", threads {row['threads']}" if several else "")


def _digits(text: str | None) -> str:
    if not text:
        return DASH
    value = float(text)
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")
