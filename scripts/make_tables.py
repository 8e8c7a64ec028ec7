"""Runs -> comparison tables, beside the paper's numbers; runs -> committed evidence; evidence -> documents.

python scripts/make_tables.py [RUNS...] [--format text|markdown|latex]     RUNS: folders of runs, or collected CSV files
python scripts/make_tables.py runs/sweep --best-by valid                   each attention at its own best learning rate
python scripts/make_tables.py --paper                                      Tables 1 to 3 line by line, with our numbers
python scripts/make_tables.py runs/table1 --collect table1                 writes results/measured/table1.csv
python scripts/make_tables.py --docs                                       what is generated in README and docs/
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.provenance import MEASURED, REPOSITORY, SHARE
from fourierformer.results import HOW_TO_MAKE_ONE, Run, comparison, markdown_of, tables, text_of
from fourierformer.results.formats import latex_of
from fourierformer.results.intervals import interval_tables, paper_tables
from fourierformer.results.measured import committed, gather, refusal, write_measured
from fourierformer.results.tables import best_tables, head_tables
from fourierformer.runs.console_io import Parser, exit_on_user_error


def parse() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("runs", nargs="*", help="run directories, folders of them, or CSV files (default: runs)")
    parser.add_argument("--format", choices=["text", "markdown", "latex"], default="text", help="default: text")
    parser.add_argument("--markdown", action="store_const", const="markdown", dest="format", help="--format markdown")
    paper = "the paper's tables, with committed runs; dashes for missing runs"
    parser.add_argument("--paper", action="store_true", help=paper)
    best = "where settings (a learning rate) differ: each attention at the settings with its best validation"
    parser.add_argument("--best-by", choices=["valid"], help=best)
    collected = "add the finished runs to results/measured/NAME.csv, or a path"
    parser.add_argument("--collect", metavar="NAME", help=collected)
    parser.add_argument("--include-dirty", action="store_true", help="collect runs with uncommitted changes too")
    parser.add_argument("--include-debug", action="store_true", help="collect debug runs too")
    parser.add_argument("--docs", action="store_true", help="rewrite the generated parts of README.md and docs/")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    if SHARE != REPOSITORY and (arguments.docs or arguments.collect is not None):
        raise SetupError("--docs and --collect write into the repository: use its scripts/make_tables.py")
    if arguments.paper and arguments.best_by:
        raise SetupError("--paper and --best-by valid are two kinds of tables: leave one out")
    if arguments.collect is None and (arguments.include_dirty or arguments.include_debug):
        raise SetupError("--include-dirty and --include-debug are for --collect: tables show such runs, marked")
    if arguments.docs:
        from fourierformer.report.costs import cost_picture
        from fourierformer.report.patterns import save_gallery  # here: torch takes seconds to load, tables need none
        from fourierformer.results.documents import write_documents

        write_documents(REPOSITORY)
        save_gallery(REPOSITORY / "docs" / "pictures")
        if picture := cost_picture(MEASURED / "attention_cpu.csv"):
            picture.save(MEASURED)
        return
    runs = gather(arguments.runs or default_sources(arguments.paper))
    if not runs and not arguments.paper:
        raise SetupError(f"No runs under {', '.join(arguments.runs) or 'runs'}. {HOW_TO_MAKE_ONE}")
    if arguments.collect is not None:
        collect_runs(runs, arguments)
        return
    rows = comparison(runs)
    if arguments.paper:
        shown = paper_tables(rows)
    elif arguments.best_by:
        shown = best_tables(rows)
        if not shown:
            raise SetupError("--best-by valid: no table has runs at several settings; leave it out")
    else:
        shown = [*tables(rows), *interval_tables(rows), *head_tables(rows)]
    if arguments.format == "text":
        is_terminal = sys.stdout.isatty()
        print(text_of(shown, is_terminal, shutil.get_terminal_size().columns if is_terminal else None), end="")
    else:
        echo({"markdown": markdown_of, "latex": latex_of}[arguments.format](shown), end="")


def default_sources(paper: bool) -> list[Path]:
    """runs/; for the paper's tables the committed runs, and runs/ if it exists."""
    runs = Path("runs")
    return [*([runs] if runs.is_dir() else []), *committed()] if paper else [runs]


def collect_runs(runs: list[Run], arguments: argparse.Namespace) -> None:
    """Write the accepted runs into the file, and print every refused run with the reason."""
    path = _collected(arguments.collect)
    good: dict[str, Run] = {}
    for run in runs:
        reason = refusal(run, arguments.include_dirty, arguments.include_debug)
        if not reason and run.name in good:
            other = good[run.name]
            is_same = run.field("group") == other.field("group")
            reason = f"the same run as {other.path}" if is_same else f"it has the name of another run, {other.path}"
        if reason:
            echo(f"refused: {run.path}: {reason}", file=sys.stderr)
        else:
            good[run.name] = run
    if not good:
        raise SetupError(f"none of {len(runs)} runs may be collected; nothing was written")
    total, kept = write_measured(good.values(), path)
    counts = f"{len(good)} collected, {len(runs) - len(good)} refused, {kept} of earlier kept"
    echo(f"{os.path.relpath(path)}: {total} runs ({counts})")


def _collected(name: str) -> Path:
    """results/measured/NAME.csv, or the path of a CSV file, as studies/rates/rows.csv."""
    path = Path(name)
    if path.suffix == ".csv" and path.parent.is_dir():
        return path
    if not re.fullmatch(r"[\w-]+", name):
        valid = "the name of a file in results/measured without .csv, as table1_quick, or a path that ends in .csv"
        raise SetupError(f"--collect {name}: expected {valid}, in a folder that exists")
    return MEASURED / f"{name}.csv"


if __name__ == "__main__":
    with exit_on_user_error():
        main(parse())
