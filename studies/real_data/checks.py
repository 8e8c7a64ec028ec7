"""The checks that this study made after its plan: their runs beside the plan's, seed by seed."""

from pathlib import Path

from fourierformer.results.comparison import Cell, Row, comparison
from fourierformer.results.formats import DASH, Table
from fourierformer.results.measured import read_measured
from fourierformer.results.statistics import compare, difference_text, p_text
from fourierformer.results.tables import title_of
from studies.real_data.hypotheses import (
    EVIDENCE,
    FOURIER,
    GAUSSIAN,
    HERE,
    MATCHED,
    SOFTMAX,
    Configuration,
    on_common_seeds,
    relative,
    relative_text,
)

PLANNED, CHECKS = "evidence_lm", "evidence_lm_checks"
COLUMN = EVIDENCE[PLANNED]
Arm = tuple[Configuration, float]  # with its learning rate
# The first is sought among the checks before the plan's runs, the second the other way round: softmax at 1e-3 against
# itself is the run that was made again.
COMPARED: tuple[tuple[Arm, Arm], ...] = (
    ((MATCHED, 1e-3), (SOFTMAX, 1e-3)),
    ((MATCHED, 2e-3), (SOFTMAX, 2e-3)),
    ((GAUSSIAN, 2e-3), (SOFTMAX, 2e-3)),
    ((GAUSSIAN, 2e-3), (MATCHED, 2e-3)),
    ((Configuration("fourier_first_coordinate"), 2e-3), (SOFTMAX, 2e-3)),
    ((FOURIER, 2e-3), (SOFTMAX, 2e-3)),
    ((SOFTMAX, 2e-3), (SOFTMAX, 1e-3)),
    ((GAUSSIAN, 2e-3), (GAUSSIAN, 1e-3)),
    ((MATCHED, 2e-3), (MATCHED, 1e-3)),
    ((SOFTMAX, 4e-3), (SOFTMAX, 2e-3)),
    ((MATCHED, 4e-3), (MATCHED, 2e-3)),
    ((SOFTMAX, 1e-3), (SOFTMAX, 1e-3)),
)
HEADER = ["comparison", "n", "difference", "relative", "p"]
NOTE = "differences: mean ± 95 % t-interval, paired over the seeds that both have; p of each test by itself"


def rate_of(row: Row) -> float:
    return float(row.config["optim.lr"])


def check_table(folder: Path = HERE) -> Table | None:
    """What COMPARED names, as far as it was run; None before any check."""
    path = folder / f"{CHECKS}.csv"
    if not path.is_file():
        return None
    planned, checks = (comparison(read_measured(folder / f"{name}.csv")) for name in (PLANNED, CHECKS))
    body = []
    for first, second in COMPARED:
        is_repeat = first == second
        sought = checks if is_repeat else [*checks, *planned]
        cells = on_common_seeds(_cell(sought, first), _cell([*planned, *checks], second))
        if cells:
            label = f"{_label(first)}{' again' if is_repeat else ''} - {_label(second)}"
            body.append([label, *_numbers(*cells, checks[0].primary)])
    return Table(title_of(checks), checks, HEADER, body, notes=[NOTE])


def _cell(rows: list[Row], arm: Arm) -> Cell | None:
    wanted, rate = arm
    return next((row.cell(COLUMN) for row in rows if wanted.is_of(row) and rate_of(row) == rate), None)


def _label(arm: Arm) -> str:
    return f"{arm[0]} lr={arm[1]:g}"


def _numbers(first: Cell, second: Cell, primary: str) -> list[str]:
    difference = compare(first, second)
    return [
        str(first.n),
        difference_text(difference, primary) or DASH,
        relative_text(relative(first, second)),
        DASH if difference.p is None else p_text(difference.p),
    ]
