"""How much the heads of a layer differ: the table of means, and the distance at every depth."""

from fourierformer.plots import Picture, layer_chart
from fourierformer.report.section import Charts, Sheet, sheet_of
from fourierformer.results import Table
from fourierformer.results.curves import layer_curves
from fourierformer.results.redundancy import head_tables

CAPTION = "How much the heads of a layer differ: means over layers, sequences and pairs of heads."
CHARTS = {
    "head_distance": ("Distance between heads per layer", "distance of attention maps", "Larger: less redundant."),
    "rank": ("Rank of the attention maps per layer", "rank", "Singular values above 1e-6, mean over heads."),
}


def head_parts(table: Table, anchor: str) -> list[Sheet | Charts]:
    parts: list[Sheet | Charts] = []
    for found in head_tables(table.rows):
        parts += [sheet_of(found, CAPTION, leave_out=table.lines), Charts(_pictures(found, anchor))]
    return parts


def _pictures(table: Table, anchor: str) -> list[Picture]:
    splits = sorted({split for row in table.rows for run in row.runs for split in run.head_layers})
    pictures = []
    for split in splits:
        for key, (title, label, meaning) in CHARTS.items():
            curves = layer_curves(table.rows, split, key)
            if curves:
                seeds = " Line: mean over seeds; band: from the lowest to the highest seed."
                caption = f"{meaning}{seeds if any(curve.seeds > 1 for curve in curves) else ''}"
                name = f"{key.replace('_', '-')}-per-layer-{split}--{anchor}"
                pictures.append(layer_chart(curves, name, f"{title}, {split} split", label, caption))
    return pictures
