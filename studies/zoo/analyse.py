"""Every mechanism in the order of its result, with Dunnett's test against softmax: python -m studies.zoo.analyse"""

from pathlib import Path

from fourierformer.results.baseline import BASELINE
from fourierformer.results.comparison import Row, comparison, mean_text
from fourierformer.results.documents import write_parts
from fourierformer.results.formats import DASH, markdown_grid
from fourierformer.results.measured import read_measured
from fourierformer.results.metrics import metric
from fourierformer.results.statistics import MARGIN, SIGNIFICANT, Dunnett, dunnett, p_text
from fourierformer.results.tables import table_groups
from fourierformer.results.warnings import misleading
from fourierformer.tasks import Column

# the sweeps over all mechanisms, and the evaluation by which they are sorted
ZOO: dict[str, Column] = {"zoo_lm": ("test", "sliding"), "zoo_vit": ("valid", "last")}
HERE = Path(__file__).resolve().parent


def rankings(folder: Path = HERE) -> str:
    """A sorted table for every committed sweep over all mechanisms."""
    parts = [
        ranking(rows, column, f"{name}.csv")
        for name, column in ZOO.items()
        if (path := folder / f"{name}.csv").is_file()
        for rows in table_groups(comparison(read_measured(path)))
    ]
    return "\n\n".join(parts)


def ranking(rows: list[Row], column: Column, file: str) -> str:
    """Best first, each with its difference to softmax; the note states the test and checks its assumption."""
    key = rows[0].primary
    cells = {row.attention: cell for row in rows if (cell := row.cell(column))}
    ordered = sorted(cells, key=lambda name: cells[name].mean, reverse=metric(key).higher_is_better)
    others = {name: cell for name, cell in cells.items() if name != BASELINE}
    test = dunnett(others, cells[BASELINE], key) if BASELINE in cells else None
    header = (
        "attention",
        "seeds",
        f"{column[0]} {metric(key).short}, {column[1]}",
        f"against {BASELINE}",
        "p",
        "verdict",
    )
    lines = [
        (f"`{name}`", str(cells[name].n), mean_text(cells[name], key), *_against(name, test, key)) for name in ordered
    ]
    grid = markdown_grid(header, lines, [True, False, False, False, False, True])
    notes = [f"{rows[0].model} on {rows[0].data}, from `studies/zoo/{file}`", *_test_notes(test, key)]
    by_name = {row.attention: row for row in rows}
    notes += [doubt for name in ordered for doubt in misleading(by_name[name], rows)]
    return f"{grid}\n\n" + "\n".join(f"- {note}" for note in notes)


def _against(name: str, test: Dunnett | None, key: str) -> tuple[str, str, str]:
    """Simultaneous interval, p and verdict."""
    if test is None or name not in test.p:
        return DASH, DASH, DASH
    (low, high), p, points = test.intervals[name], test.p[name], metric(key).unit == "%"
    interval = f"{low:+.1f} to {high:+.1f} points" if points else f"{100 * low:+.1f} to {100 * high:+.1f} %"
    shown = p_text(p).removeprefix("p ").removeprefix("= ")
    margin = 100 * MARGIN if points else MARGIN
    if p < SIGNIFICANT:
        told = "better" if (low + high > 0) == metric(key).higher_is_better else "worse"
    else:
        told = "equivalent" if -margin < low and high < margin else "undecided"
    return interval, shown, told


def _test_notes(test: Dunnett | None, key: str) -> list[str]:
    if test is None:
        return []
    scale, unit = ("", "point") if metric(key).unit == "%" else (f" on log {metric(key).name}", "%")
    return [
        f"interval and p: Dunnett's test{scale}, simultaneous over {len(test.p)} comparisons with {BASELINE}, 95 %; "
        f"equivalent: the interval lies within {100 * MARGIN:g} {unit}; undecided: too few seeds to tell",
        f"the test assumes equal variances: the largest standard deviation is {test.spread:.0f} times the smallest "
        f"(Brown-Forsythe {p_text(test.p_spread)})",
    ]


def parts() -> dict[str, str]:
    return {"ranking": rankings()}


if __name__ == "__main__":
    write_parts(HERE / "README.md", parts())
