"""Runs -> comparison tables: python scripts/make_tables.py [RUNS...] [--markdown]"""

import argparse
import sys

from fourierformer.errors import SetupError
from fourierformer.results import HOW_TO_MAKE_ONE, collect, comparison, render_markdown, render_text


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare runs: one row per configuration, mean and sd over its seeds.")
    parser.add_argument("runs", nargs="*", default=["runs"], help="run directories or folders of them (default: runs)")
    parser.add_argument("--markdown", action="store_true", help="Markdown instead of aligned text")
    arguments = parser.parse_args()
    try:
        rows = comparison(collect(arguments.runs))
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if not rows:
        print(f"No runs under {', '.join(arguments.runs)}. {HOW_TO_MAKE_ONE}", file=sys.stderr)
        return SetupError.exit_code
    print(render_markdown(rows) if arguments.markdown else render_text(rows, colour=sys.stdout.isatty()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
