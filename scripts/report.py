"""Runs -> one self-contained HTML page: python scripts/report.py [RUNS...] [--out report.html]"""

import argparse
import sys
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.report import write_report
from fourierformer.results import HOW_TO_MAKE_ONE, collect


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Tables, curves, environment and commands of all runs in one HTML file."
    )
    parser.add_argument("runs", nargs="*", default=["runs"], help="run directories or folders of them (default: runs)")
    parser.add_argument("--out", type=Path, help="the file to write (default: report.html beside the runs)")
    arguments = parser.parse_args()
    # not in the working directory: an untracked file would mark every later run's commit as dirty
    out = arguments.out or Path(arguments.runs[0]) / "report.html"
    try:
        runs = collect(arguments.runs)
        if not runs:
            raise SetupError(f"No runs under {', '.join(arguments.runs)}. {HOW_TO_MAKE_ONE}")
        print(write_report(runs, out))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return SetupError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
