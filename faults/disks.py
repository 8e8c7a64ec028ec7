"""Disks that are full, broken or not permitted: at every operation by an injected error, and really full."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import in_child
from faults.operations import FileOperations, broken_disk, disk_full, not_permitted
from faults.settings import Bench
from faults.stops import operations_of
from faults.trials import Trial, Verdict, crashed, resumed, seeded

ERRORS = {
    "no space, once": (disk_full, False),
    "no space, from there on": (disk_full, True),
    "not permitted": (not_permitted, False),
    "input/output error": (broken_disk, False),
}


def failing_at_operations(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """Every error at every operation, in a random order."""
    cases = [(error, number) for error in ERRORS for number in range(operations_of(bench, name))]
    seeded(seed, "disk", name).shuffle(cases)
    for error, number in cases:
        fault = f"{error}, at operation {number}"
        yield Trial(f"disk: {error}", name, fault, _failing(bench, name, error, number))


def _failing(bench: Bench, name: str, error: str, number: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, root = bench.settings[name], folder / "runs"
        fault, lasting = ERRORS[error]

        def train() -> int:
            FileOperations(root, number, fault, lasting).install()
            return setting.train(*setting.arguments, f"runs_root={root}")

        ended = in_child(train)
        if bad := crashed(ended):
            return bad
        return resumed(bench, setting, root, last_only="could not be deleted" in ended.text)

    return action


def really_full(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A small file system in memory that fills up during the run; none where it may not be mounted."""
    draw = seeded(seed, "full", name)
    while True:
        size = draw.randrange(4, 400, 4)
        yield Trial("disk: a full file system", name, f"{size} KiB", _on_small_disk(bench, name, size))


def _on_small_disk(bench: Bench, name: str, size: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, disk = bench.settings[name], folder / "disk"
        disk.mkdir()
        mount(disk, f"size={size}k")
        try:
            if bad := crashed(bench.run(setting, disk / "runs")):
                return bad
            mount(disk, "remount,size=64m")
            return resumed(bench, setting, disk / "runs")
        finally:
            subprocess.run(["umount", disk], check=False)

    return action


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True, capture_output=True)


def may_mount(folder: Path) -> bool:
    """Only root may, and not in every container."""
    folder.mkdir(exist_ok=True)
    try:
        mount(folder, "size=4k")
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", folder], check=True)
    return True
