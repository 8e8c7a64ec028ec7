"""Rows -> the tables of README.md: python -m studies.mlm_rank.analyse"""

from pathlib import Path

from fourierformer.results.comparison import comparison
from fourierformer.results.documents import origin, write_parts
from fourierformer.results.formats import markdown_of
from fourierformer.results.measured import read_measured
from fourierformer.results.tables import head_tables, tables

HERE = Path(__file__).resolve().parent


def parts() -> dict[str, str]:
    runs = read_measured(HERE / "rows.csv")
    rows = comparison(runs)
    shown = markdown_of([*tables(rows), *head_tables(rows)])
    return {"table": f"{shown}\nFrom `studies/mlm_rank/rows.csv`: {origin(runs)}."}


if __name__ == "__main__":
    write_parts(HERE / "README.md", parts())
