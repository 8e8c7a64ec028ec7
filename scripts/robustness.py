"""Measure trained runs under attack: swapped words for language models, FGM and PGD for images; a table and curves.

python scripts/robustness.py runs/wt103_small/* --protocol overlapping
python scripts/robustness.py runs/cifar10_deit/* --attacks fgm --levels 1 2 4 --limit 2000
python scripts/robustness.py runs/cifar10_deit/* --space pixel --labels true

--levels are shares of the words, or eps in 255ths. Each number is kept in robustness.json of its run and is not
measured again; the same command after a stop goes on.
"""

import argparse
from pathlib import Path

from fourierformer.errors import SetupError, UserError, check_range
from fourierformer.files import write_csv
from fourierformer.printing import echo
from fourierformer.provenance import header
from fourierformer.results.collection import runs_among
from fourierformer.runs.console_io import Parser, exit_on_user_error
from fourierformer.runs.cpu import let_threads_sleep


def main() -> None:
    parser = Parser(__doc__)
    runs = "run directories, or folders of them, of one kind; each gets a robustness.json"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    attacks = "word_swap; fgm, pgd (default: all of the runs' kind)"
    parser.add_argument("--attacks", nargs="+", choices=["word_swap", "fgm", "pgd"], metavar="NAME", help=attacks)
    levels = "shares of the words (default: .015 .025 .05 .1), or eps in 255ths (default: 1 2 3 4 5 6)"
    parser.add_argument("--levels", nargs="+", type=float, metavar="L", help=levels)
    parser.add_argument("--split", choices=["train", "valid", "test"], help="default: test for text, valid for images")
    parser.add_argument("--protocol", help="a protocol of text (default: sliding, what a paper would quote)")
    parser.add_argument("--limit", type=int, help="score only so many tokens or images of the split")
    space = "of images, in which eps counts: normalised as in the papers (default), or pixel"
    parser.add_argument("--space", choices=["normalised", "pixel"], help=space)
    labels = "of images, away from which an attack moves: predicted as in the papers (default), or true"
    parser.add_argument("--labels", choices=["predicted", "true"], help=labels)
    parser.add_argument("--seed", type=int, default=0, help="of swapped words and PGD's first points (default: 0)")
    out = "folder of robustness.csv, .svg and .png (default: runs/robustness)"
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"), help=out)
    arguments = parser.parse_args()
    let_threads_sleep()
    with exit_on_user_error():
        attack_runs(arguments)


def attack_runs(arguments: argparse.Namespace) -> None:
    check_range("--limit", arguments.limit, 1)
    check_range("--seed", arguments.seed, 0)
    if arguments.out.is_file():
        raise SetupError(f"--out {arguments.out} is a file: name a folder")
    runs = runs_among(arguments.runs)
    rows: list[dict] = []
    refused: list[UserError] = []
    for number, run in enumerate(runs, 1):
        echo(f"[{number}/{len(runs)}] {run}", flush=True)
        try:
            # two runs of one name are told apart by their folders
            name = run.name if [other.name for other in runs].count(run.name) == 1 else str(run)
            rows += rows_of_run(run, name, arguments, rows)
        except UserError as error:  # the other runs are still measured
            refused.append(error)
            echo(f"left out: {error}")
    if rows:
        show(rows, arguments.out)
    if refused:
        raise refused[0]


def rows_of_run(run: Path, name: str, arguments: argparse.Namespace, earlier: list[dict]) -> list[dict]:
    """Measure what robustness.json has not yet. Returns a row for each number, the clean one first."""
    from fourierformer.analysis.robustness import Measurement, measured, planned
    from fourierformer.results.metrics import metric_text
    from fourierformer.runs.parts import chosen_evaluation, open_run
    from fourierformer.tracking.console import ConsoleTracker

    parts, step = open_run(run, limit=arguments.limit)
    spec, primary = parts.spec, parts.task.primary(parts.spec)
    if earlier and primary not in earlier[0]:
        raise SetupError(f"{run} is of another kind than {earlier[0]['run']}: call the script once for each kind")
    split, protocol = chosen_evaluation(parts, run, arguments.split, arguments.protocol)
    clean = Measurement(split=split, protocol=protocol, limit=arguments.limit)
    choice = {"seed": arguments.seed, "space": arguments.space, "labels": arguments.labels}
    names = {"run": name, "attention": spec.attention.name, "model": spec.model.name, "data": spec.data.name}
    rows = []
    console = ConsoleTracker(1, 1, run.name)
    try:
        for wanted in planned(parts, run, clean, arguments.attacks, arguments.levels, **choice):
            entry, was_known = measured(parts, run, step, wanted, console.evaluating)
            value = metric_text(entry[primary], primary, unit=True)
            console.say(f"  {wanted.text:16} {primary} {value}{' (measured before)' if was_known else ''}")
            rows.append(names | {"seed": spec.seed, "primary": primary} | entry)
    finally:
        console.close(0)
        parts.objective.close()
    return rows


def show(rows: list[dict], out: Path) -> None:
    """Print the table; write the CSV file and the picture."""
    from fourierformer.report.robustness import robustness_chart
    from fourierformer.results.metrics import metric

    echo(table(rows))
    columns = dict.fromkeys(key for row in rows for key in row)
    write_csv(out / "robustness.csv", rows, header("scripts/robustness.py"), columns=columns, digits=7)
    lines = {name: points(rows, name, rows[0]["primary"]) for name in attacks_of(rows)}
    space = next((row["space"] for row in rows if row["space"]), "")
    x_label = f"eps, in 1/255 of the {space} space" if space else "share of swapped words"
    picture = robustness_chart(lines, metric(rows[0]["primary"]), x_label)
    echo("\n".join(map(str, [out / "robustness.csv", *picture.save(out)])))


def attacks_of(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["attack"] for row in rows if row["level"]))


def points(rows: list[dict], attack: str, key: str) -> dict[str, list[tuple[float, float]]]:
    """(level, value) of each run, with its clean number at level 0."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["attack"] == attack or not row["level"]:
            found.setdefault(row["run"], []).append((row["level"], row[key]))
    return found


def table(rows: list[dict]) -> str:
    """A line for each run, attack and metric; then one that states what was scored."""
    from fourierformer.results.metrics import metric, metric_text, task_behind

    levels = sorted({row["level"] for row in rows})
    primary = rows[0]["primary"]
    keys = [key for key in (primary, *task_behind("", primary).secondary_metrics) if key in rows[0]]
    words = rows[0]["protocol"]
    heads = ["clean", *(f"{100 * level:g} %" if words else f"{level:g}/255" for level in levels[1:])]
    lines = [["run", "attack", "metric", *heads]]
    for attack in attacks_of(rows):
        for key in keys:
            for run, values in points(rows, attack, key).items():
                cells = [metric_text(dict(values)[level], key) if level in dict(values) else "-" for level in levels]
                lines.append([run, attack, metric(key).short, *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([*map(str.ljust, line[:3], widths), *map(str.rjust, line[3:], widths[3:])]) for line in lines]
    scored = dict.fromkeys(" ".join(filter(None, [row["data"], row["split"], row["protocol"]])) for row in rows)
    attacked = next((f"; space {row['space']}, labels {row['labels']}" for row in rows if row["space"]), "")
    return "\n".join([*text, ", ".join(scored) + attacked])


if __name__ == "__main__":
    main()
