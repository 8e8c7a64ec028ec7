"""Rows -> the generated parts of this study's README.md, and the figures: python -m studies.real_data.analyse"""

from dataclasses import replace
from pathlib import Path

from fourierformer.results.comparison import comparison
from fourierformer.results.documents import origin, write_parts
from fourierformer.results.formats import markdown_of
from fourierformer.results.measured import read_measured
from fourierformer.results.tables import head_tables, tables
from studies.real_data.attacks import ATTACKED, MACHINES, RUNS, attack_table
from studies.real_data.checks import CHECKS, PLANNED, check_table
from studies.real_data.figures import save_evidence
from studies.real_data.headline import findings, headline_table
from studies.real_data.hypotheses import EVIDENCE, HERE, hypothesis_table
from studies.real_data.layers import layer_tables


def parts(folder: Path = HERE) -> dict[str, str]:
    sources = {"headline": headline, "checks": checks, "attacks": attacks, "evidence": evidence}
    return {name: source(folder) for name, source in sources.items()}


def headline(folder: Path = HERE) -> str:
    """The study's result: each attention at each learning rate, with the share of the weights that tokens get."""
    found = findings(folder)
    runs = [run for finding in found for row in finding.by_rate.values() for run in row.runs]
    return f"{headline_table(found)}\n\nFrom `studies/real_data/{PLANNED}.csv` and `{CHECKS}.csv`: {origin(runs)}."


def evidence(folder: Path = HERE) -> str:
    """Tables of the runs, the verdicts on the hypotheses, heads and layers."""
    parts = []
    for name, column in EVIDENCE.items():
        path = folder / f"{name}.csv"
        if path.exists():
            runs = read_measured(path)
            rows = comparison(runs)
            numbers = [replace(table, notes=[], findings=[], protocols=[], scale=[]) for table in tables(rows)]
            said = [*numbers, hypothesis_table(rows, column), *head_tables(rows), *layer_tables(rows)]
            shown = markdown_of(said)
            parts.append(f"{shown}\nFrom `studies/real_data/{path.name}`: {origin(runs)}.")
    return "\n\n".join(parts)


def checks(folder: Path = HERE) -> str:
    """The comparisons that were added after the plan."""
    table = check_table(folder)
    assert table is not None  # its rows are committed
    runs = [run for row in table.rows for run in row.runs]
    return f"{markdown_of([table])}\nFrom `studies/real_data/{CHECKS}.csv`: {origin(runs)}."


def attacks(folder: Path = HERE) -> str:
    """The image models under attack, of runs that were trained again for it."""
    lines = [attack_table(folder)]
    for ending in MACHINES.values():
        if (path := folder / f"{RUNS}{ending}.csv").is_file():
            files = f"`studies/real_data/{path.name}` and `{ATTACKED}{ending}.csv`"
            lines.append(f"From {files}: {origin(read_measured(path))}.")
    return "\n\n".join(lines)


if __name__ == "__main__":
    write_parts(HERE / "README.md", parts())
    save_evidence(HERE)
