"""The paper's own tables, line by line, with our numbers beside the printed ones and dashes for what was not run."""

from collections.abc import Iterable

from fourierformer.errors import SetupError
from fourierformer.results.comparison import HEADS, Row
from fourierformer.results.evidence import HEADER, evaluation_text, evidence_line
from fourierformer.results.layout import Measure, Table
from fourierformer.results.metrics import metrics
from fourierformer.results.paper import PAPER, TABLES, PaperValue, is_the_papers, read_paper, scale_lines
from fourierformer.results.remarks import protocol_lines
from fourierformer.results.significance import significance_lines

TITLES = {
    "1": "Table 1: WikiText-103 perplexity, 16-layer word language models, mean of 5 seeds in the paper",
    "2": "Table 2: ImageNet-1k accuracy, DeiT-tiny; the paper does not say whether of the last or the best epoch",
    "3": "Table 3: average distance between the heads of a layer, small model, mean and sd over the layers",
}
STATUS = "status: verified = read in a source; derived = computed from such and recalled values; recalled = from memory"
COUNTED = (
    "a run counts here only with the paper's data, length of training and settings; others have tables of their own"
)


def paper_tables(rows: Iterable[Row]) -> list[Table]:
    """Tables 1 to 3. A line per printed number; where the paper leaves the split or the weights open, one for each."""
    values = read_paper()
    if not values:
        raise SetupError(f"{PAPER} is not there: run this in a clone of the repository.")
    rows = list(rows)
    return [_table(name, [value for value in values if value.table == name], rows) for name in TABLES]


def _table(name: str, values: list[PaperValue], rows: list[Row]) -> Table:
    body: list[list[str]] = []
    used: list[Row] = []
    doubts: list[str] = []
    for value in values:
        if value.metric not in metrics():  # the gains that the text states are differences of other lines
            continue
        matching = [row for row in rows if is_the_papers(row, value)]
        row = matching[0] if matching else None
        used += [row] if row and not any(row is other for other in used) else []
        if len(matching) > 1:
            groups = ", ".join(other.group for other in matching[1:])
            doubts.append(
                f"{value.model} {value.attention}: group {matching[0].group} is shown, {groups} would fit as well"
            )
        for column in value.columns:
            cell = row.cell(column, value.metric) if row else None
            where = evaluation_text((column, value.metric)).removesuffix(" heads")
            body.append([value.model, value.attention, where, *evidence_line(cell, value.metric, value)])
    header = ["model", "attention", "evaluation", *HEADER]
    measures = _measures(values)
    columns = list(dict.fromkeys(column for column, key in measures if column[1] != HEADS))
    protocols = protocol_lines(used, columns) if used else []
    notes = [*dict.fromkeys(doubts)]
    notes += [*(significance_lines(used, columns) if used else ["no run of this table at the paper's scale"]), STATUS]
    return Table(TITLES[name], "", used, header, body, set(), set(), protocols, [*notes, COUNTED], scale_lines(used))


def _measures(values: list[PaperValue]) -> list[Measure]:
    return [(column, value.metric) for value in values for column in value.columns]
