"""The zoo's runs in the order of what they reached, and which of them differ from softmax by more than seeds do."""

from pathlib import Path

from fourierformer.results.comparison import Row, comparison, mean_text, metric
from fourierformer.results.doubts import doubts
from fourierformer.results.formats import DASH, markdown_grid
from fourierformer.results.measured import read_measured
from fourierformer.results.statistics import BASELINE, Pair, difference_text, p_text, pairs, verdict
from fourierformer.results.tables import table_groups
from fourierformer.tasks import Column

# the sweeps over all mechanisms, and the evaluation by which they are sorted
ZOO: dict[str, Column] = {"zoo_lm": ("test", "sliding"), "zoo_vit": ("valid", "last")}
NOTHING = "No runs of `sweep=zoo_lm` or `sweep=zoo_vit` are committed yet."


def rankings(folder: Path) -> str:
    """A sorted table for every committed sweep over all mechanisms."""
    parts = [
        ranking(rows, column, f"{name}.csv")
        for name, column in ZOO.items()
        if (path := folder / f"{name}.csv").is_file()
        for rows in table_groups(comparison(read_measured(path)))
    ]
    return "\n\n".join(parts) or NOTHING


def ranking(rows: list[Row], column: Column, file: str) -> str:
    """Best first; the note says how many comparisons the correction is over, and whose loss says little."""
    compared = {id(pair.row): pair for pair in pairs(rows, [column])}
    key = rows[0].primary
    measured = [row for row in rows if row.cell(column)]
    ordered = sorted(measured, key=lambda row: _mean(row, column), reverse=metric(key).higher_is_better)
    header = ("attention", "seeds", f"{column[0]} {metric(key).short}, {column[1]}", f"minus {BASELINE}'s", "p")
    grid = markdown_grid(
        (*header, f"against {BASELINE}"),
        [_line(row, column, compared.get(id(row))) for row in ordered],
        [True, False, False, False, False, True],
    )
    tested = sum(pair.p is not None for pair in compared.values())
    notes = [
        f"{rows[0].model} on {rows[0].data}, from `results/measured/{file}`. Differences: mean ± 95 % t-interval over "
        f"the seeds; p: paired t-test, Holm-corrected over {tested} comparisons",
        *(doubt for row in ordered for doubt in doubts(row, rows)),
    ]
    return f"{grid}\n\n" + "\n".join(f"- {note}" for note in notes)


def _mean(row: Row, column: Column) -> float:
    cell = row.cell(column)
    return cell.mean if cell else float("nan")


def _line(row: Row, column: Column, pair: Pair | None) -> tuple[str, ...]:
    cell, difference, p, told = row.cell(column), DASH, DASH, DASH
    if pair and pair.p is not None:
        difference, p = difference_text(pair.difference, row.primary), p_text(pair.p).removeprefix("p ")
        told = verdict(pair.difference, row.primary, pair.p)
    return (
        f"`{row.attention}`",
        str(row.n),
        mean_text(cell, row.primary) if cell else DASH,
        difference,
        p.removeprefix("= "),
        told,
    )
