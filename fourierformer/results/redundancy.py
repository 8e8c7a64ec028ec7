"""How much heads differ (the paper's Table 3), for every run that scripts/head_redundancy.py has looked at."""

from collections.abc import Iterable

from fourierformer.results.comparison import HEADS, Cell, Row, row_label
from fourierformer.results.layout import DASH, Table, table_groups, title_of
from fourierformer.results.metrics import metric_text
from fourierformer.results.paper import scale_lines

QUANTITIES = {
    "head_distance": "distance of\nattention maps",
    "head_distance_sd": "its sd\nover layers",
    "row_distance": "distance\nper row",
    "output_distance": "distance of\nhead outputs",
    "rank": "rank of\nthe maps",
}
NOTES = (
    "distances: of two heads' attention maps (or outputs), averaged over pairs, sequences and layers; larger = less "
    "redundant",
    "± is the sample standard deviation over n seeds",
)


def head_tables(rows: Iterable[Row]) -> list[Table]:
    groups = ([row for row in group if any(run.heads for run in row.runs)] for group in table_groups(rows))
    return [_table(group) for group in groups if group]


def _table(rows: list[Row]) -> Table:
    body = []
    for row in rows:
        for split in sorted({split for run in row.runs for split in run.heads}):
            cells = {key: row.cell((split, HEADS), key) for key in QUANTITIES}
            n = max((cell.n for cell in cells.values() if cell), default=0)
            texts = [_cell(cell, key) for key, cell in cells.items()]
            body.append([row.model, row_label(row, rows), split, str(n), *texts])
    title = f"{title_of(rows)}: how much the heads of a layer differ"
    header = ["model", "attention", "split", "n", *QUANTITIES.values()]
    return Table(title, rows[0].primary, rows, header, body, set(), set(), [], list(NOTES), scale_lines(rows))


def _cell(cell: Cell | None, key: str) -> str:
    if cell is None:
        return DASH
    spread = f" ± {metric_text(cell.sd, key)}" if cell.sd is not None else ""
    return f"{metric_text(cell.mean, key)}{spread}"
