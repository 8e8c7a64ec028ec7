"""The table of docs/reliability.md: what came of injected faults, from the file that `make faults` writes."""

from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.files import read_csv
from fourierformer.results.formats import markdown_grid

FILE = "faults.csv"
GOOD = ("same result", "refused in one line", "named, not shown", "accepted", "not trained")
BAD = ("traceback", "other weights", "silent change", "hang", "touched outside", "leaked")
COMMANDS = ("forked", "started")  # in children of a process that had imported everything; in processes of their own
NOTHING = "No fault injection is committed yet."


def fault_table(folder: Path) -> str:
    """One line per kind of fault and one for all of them; below it where the numbers come from."""
    path = folder / FILE
    if not path.is_file():
        return NOTHING
    file = read_csv(path)
    columns = ("trials", *GOOD, *BAD, *COMMANDS)
    totals: dict[str, dict[str, int]] = {}
    try:
        for row in file.rows:
            line = totals.setdefault(row["fault"], dict.fromkeys(columns, 0))
            for name in line:
                line[name] += int(row[name])
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"{path}: not as `make faults` writes it ({error!r}). Restore it from git.") from None
    everything = {name: sum(line[name] for line in totals.values()) for name in columns}
    forked, started = (everything.pop(name) for name in COMMANDS)
    shown = list(everything)
    lines = [(name, *(_text(line[key]) for key in shown)) for name, line in [*totals.items(), ("**all**", everything)]]
    grid = markdown_grid(("fault", *shown), lines, [True, *[False] * len(shown)])
    commands = f"{_text(forked)} commands ran in forked children, {_text(started)} in processes of their own"
    return f"{grid}\n\n{commands}. From `results/measured/{FILE}`: {'; '.join(file.comments)}."


def _text(count: int) -> str:
    return f"{count:,}"
