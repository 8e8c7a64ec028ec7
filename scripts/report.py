"""Runs -> one self-contained HTML page, and its charts as files.

python scripts/report.py                                   runs/report.html, and PNG and SVG in runs/figures
python scripts/report.py runs/table1 --out table1.html --figures figures/table1
python scripts/report.py results/measured/*.csv            committed evidence: the same, with curves of evaluations
                                                           and times of the kernels
"""

import argparse
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.printing import echo
from fourierformer.runs.console_io import Parser, exit_on_user_error


def main() -> None:
    parser = Parser(__doc__)
    runs = "run directories, folders of them, or collected CSV files (default: runs)"
    parser.add_argument("runs", nargs="*", default=["runs"], help=runs)
    parser.add_argument("--out", type=Path, help="the file to write (default: report.html beside the runs)")
    parser.add_argument("--figures", type=Path, help="folder of the charts' files (default: figures beside the page)")
    arguments = parser.parse_args()
    with exit_on_user_error():
        report(arguments)


def report(arguments: argparse.Namespace) -> None:
    from fourierformer.report import committed_sections, write_report
    from fourierformer.results import HOW_TO_MAKE_ONE
    from fourierformer.results.measured import gather

    runs = gather(arguments.runs)
    if not runs:
        raise SetupError(f"No runs under {', '.join(arguments.runs)}. {HOW_TO_MAKE_ONE}")
    # not in the working directory: an untracked file would mark every later run's commit as dirty
    first = Path(arguments.runs[0])
    beside = Path("runs") if first.suffix == ".csv" else first
    if len(runs) > 1 and beside in [run.path for run in runs]:
        beside = beside.parent  # the page in a run's directory is of that run alone
    out = arguments.out or beside / "report.html"
    if out.is_dir():
        raise SetupError(f"--out {out} is a directory: name the file to write")
    figures = arguments.figures or out.parent / "figures"
    try:
        files = [path for path in map(Path, arguments.runs) if path.suffix == ".csv"]
        echo(write_report(runs, out, committed_sections(files), figures, maps=True))
    except OSError as error:
        problem = f"{out} or {figures} cannot be written ({error.strerror or error})"
        raise SetupError(f"{problem}: choose others with --out and --figures") from None


if __name__ == "__main__":
    main()
