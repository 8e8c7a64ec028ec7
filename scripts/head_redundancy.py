"""Measure how much the heads of trained runs differ (the paper's Table 3), layer by layer.

python scripts/head_redundancy.py runs/wt103_small/lm_small-fourier-s1-<hash> [RUN ...] --split test
"""

import argparse
from pathlib import Path

from fourierformer.errors import UserError, check_range
from fourierformer.printing import echo
from fourierformer.results import comparison, text_of
from fourierformer.results.collection import runs_among
from fourierformer.results.labels import labels_of_runs
from fourierformer.results.runs import read_run
from fourierformer.results.tables import head_tables
from fourierformer.runs.console_io import Parser, exit_on_user_error


def main() -> None:
    parser = Parser(__doc__)
    runs = "run directories, or folders of them; each gets a heads.json"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument("--sequences", type=int, default=1000, help="most sequences to measure (default: 1000)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the numbers of all runs into this file too")
    arguments = parser.parse_args()
    with exit_on_user_error():
        compare_heads(arguments)


def compare_heads(arguments: argparse.Namespace) -> None:
    from fourierformer.analysis.heads import measure_run, save, write_numbers

    check_range("--sequences", arguments.sequences, 1)
    report, refused, runs = [], [], runs_among(arguments.runs)
    settings = labels_of_runs(map(read_run, runs))
    for run in runs:
        echo(f"{run}  {settings.get(run, '')}".rstrip())
        try:
            split, numbers = measure_run(run, arguments.split, arguments.sequences)
        except UserError as error:  # the other runs are still measured
            refused.append(error)
            echo(f"left out: {error}")
            continue
        save(run, split, numbers)
        report.append({"run": str(run), "settings": settings.get(run, ""), "split": split, **numbers})
        echo(table(split, numbers))
    if len(report) > 1:
        echo("\n" + text_of(head_tables(comparison(map(read_run, runs)))).rstrip())
    if arguments.json and report:
        write_numbers(arguments.json, report)
    if refused:
        raise refused[0]


def table(split: str, numbers: dict) -> str:
    """One line per layer, one for all of them, and one with split, sequences and step."""
    columns = list(numbers["mean"])
    lines = ["layer" + "".join(f"{name:>18}" for name in columns)]
    for number, layer in enumerate(numbers["layers"]):
        lines.append(f"{number:5}" + "".join(f"{layer[name]:18.3f}" for name in columns))
    lines.append("  all" + "".join(f"{spread(numbers['mean'][name], numbers['sd'][name]):>18}" for name in columns))
    lines.append(
        f"{split} split of {numbers['data']}, {numbers['sequences']:,} sequences of {numbers['length']} tokens, "
        f"rank of {numbers['ranked_sequences']}; checkpoint of step {numbers['step']:,}; "
        "all = mean ± standard deviation over the layers"
    )
    return "\n".join(lines)


def spread(mean: float, sd: float | None) -> str:
    return f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"


if __name__ == "__main__":
    main()
