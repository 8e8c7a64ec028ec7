"""What was measured without training a model, read from committed CSV files: rates of the theory, times of kernels."""

import csv
from collections.abc import Callable
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.report.estimators import estimator_section
from fourierformer.report.kernels import HEADER as KERNEL_HEADER
from fourierformer.report.kernels import kernel_section
from fourierformer.report.section import Section

Rows = list[dict[str, str]]


def committed_sections(folder: Path) -> list[Section]:
    """Empty where the folder has none of the files."""
    files = [folder / f"estimator_{what}.csv" for what in ("rates", "slopes")]
    sections = _section(files, estimator_section) if all(file.is_file() for file in files) else []
    benchmarks = [path for path in sorted(folder.glob("*.csv")) if _is_benchmark(path)]
    return [*sections, *(_section(benchmarks, kernel_section) if benchmarks else [])]


def read_table(path: Path) -> tuple[list[str], Rows]:
    """(comment lines at the top without their #, rows as they are written)."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = file.readlines()
    comments = [line for line in lines if line.startswith("#")]
    return [line[1:].strip() for line in comments], list(csv.DictReader(lines[len(comments) :]))


def _section(files: list[Path], make: Callable[..., Section]) -> list[Section]:
    try:
        return [make({file.name: read_table(file) for file in files})]
    except (KeyError, ValueError, TypeError) as error:
        names = ", ".join(map(str, files))
        raise SetupError(f"{names}: not as its script writes it ({error!r}). Restore it from git.") from None


def _is_benchmark(path: Path) -> bool:
    _, rows = read_table(path)
    return bool(rows) and tuple(rows[0])[: len(KERNEL_HEADER)] == KERNEL_HEADER
