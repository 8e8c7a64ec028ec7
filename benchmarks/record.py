"""Rows of numbers as a CSV file that says where they come from, written alike by every benchmark."""

import csv
import os
import shlex
import sys
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.provenance import REPOSITORY, describe, without_folders

MEASURED = REPOSITORY / "results" / "measured"


def origin(benchmark: str, **more: str) -> str:
    """Comment lines for the top of the file: command, commit, versions, then what else is given (machine=...)."""
    facts, _ = describe()
    command = without_folders(f"python -m benchmarks.{benchmark} {shlex.join(sys.argv[1:])}")
    versions = [f"python {facts['python']}"]
    versions += [f"{name} {facts['versions'][name]}" for name in ("torch", "triton") if facts["versions"][name]]
    lines = {"command": command.strip(), "commit": commit(facts), "versions": ", ".join(versions), **more}
    return "".join(f"# {name}: {text}\n" for name, text in lines.items())


def machine(device: str) -> str:
    """What computes, in words."""
    if device == "cpu":
        return f"{len(os.sched_getaffinity(0))}-core CPU"
    import torch

    return torch.cuda.get_device_name()


def commit(facts: dict) -> str:
    """Seven digits, and a + where there are uncommitted changes."""
    return (facts["commit"] or "unknown")[:7] + ("+" if facts["dirty"] else "")


def write_csv(path: Path, rows: list[dict], head: str = "") -> None:
    """All rows so far, in place of what stood there; every row has the columns of the first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            file.write(head)
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({key: shown(value) for key, value in row.items()} for row in rows)
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}. Choose another file: --out /some/path.csv") from None


def shown(value: object) -> object:
    """Five digits of a number that was measured."""
    return f"{value:.5g}" if isinstance(value, float) else value
