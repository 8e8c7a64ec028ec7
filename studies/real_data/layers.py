"""The attention layers of trained runs, one by one: their radius and their attended share."""

from collections.abc import Iterable

from fourierformer.results.comparison import Cell, Row, seed_of
from fourierformer.results.formats import Table
from fourierformer.results.labels import row_label
from fourierformer.results.runs import Run
from fourierformer.results.tables import table_groups, title_of

RADIUS, SHARE = "radius", "attended_share"
QUANTITIES = {RADIUS: "radius R", SHARE: "attended share"}
NOTE = (
    "means over n seeds; the radius at the end of training, the attended share as scripts/head_redundancy.py measures "
    "it: what the weights of a query sum to, 0 for a layer that is switched off"
)


def of_layers(run: Run, quantity: str) -> list[float]:
    """Of every layer the radius that was logged last, or the share that was measured of all queries; [] where it was
    not. (What layers log of their share is that of the last query.)"""
    if quantity == RADIUS:
        return run.layers.get(RADIUS, [])
    splits = [run.head_layers[split] for split in ("test", "valid") if split in run.head_layers]
    return [layer[quantity] for layer in (splits[0] if splits else []) if quantity in layer]


def layer_cells(row: Row, quantity: str) -> list[Cell]:
    """The numbers of every layer over the completed seeds that have them; [] where none has."""
    series = {seed_of(run): layers for run in row.runs if (layers := of_layers(run, quantity))}
    depth = min(map(len, series.values()), default=0)
    return [Cell({seed: layers[i] for seed, layers in series.items()}) for i in range(depth)]


def layer_tables(rows: Iterable[Row]) -> list[Table]:
    """One for every group of rows with a radius, of those that have one."""
    tables = (_layer_table(group) for group in table_groups(rows))
    return [table for table in tables if table.body]


def _layer_table(rows: list[Row]) -> Table:
    body = []
    for row in (row for row in rows if layer_cells(row, RADIUS)):
        for quantity, words in QUANTITIES.items():
            if cells := layer_cells(row, quantity):
                body.append([row_label(row, rows), words, str(cells[0].n), *(_text(cell.mean) for cell in cells)])
    width = max(map(len, body), default=3)
    body = [line + [""] * (width - len(line)) for line in body]
    header = ["attention", "quantity", "n", *(f"layer {i}" for i in range(width - 3))]
    return Table(f"{title_of(rows)}: its layers at the end", rows, header, body, notes=[NOTE])


def _text(value: float) -> str:
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
