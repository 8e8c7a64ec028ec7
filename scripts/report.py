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
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="the file to write (default: report.html)"
    )
    arguments = parser.parse_args()
    try:
        runs = collect(arguments.runs)
        if not runs:
            raise SetupError(f"No runs under {', '.join(arguments.runs)}. {HOW_TO_MAKE_ONE}")
        print(write_report(runs, arguments.out))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{arguments.out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return SetupError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
