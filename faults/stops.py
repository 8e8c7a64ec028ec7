"""Trainings that are killed: at every file operation, at random instants, by signals, one of two processes."""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import in_child
from faults.operations import FileOperations, kill
from faults.settings import Bench
from faults.trials import Trial, Verdict, crashed, resumed, seeded

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")


def operations_of(bench: Bench, name: str) -> int:
    """How many file operations a whole run of this setting has."""
    setting, root = bench.settings[name], bench.folder / f"count-{len(list(bench.folder.iterdir()))}"

    def count() -> list[str]:
        operations = FileOperations(root).install()
        assert setting.train(*setting.arguments, f"runs_root={root}") == 0
        return operations.names

    counted = in_child(count)
    assert isinstance(counted.value, list), counted.text
    return len(counted.value)


def killed_at_operations(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """Before every operation once, in a random order; of a write, half of it was done."""
    numbers = list(range(operations_of(bench, name)))
    seeded(seed, "kill", name).shuffle(numbers)
    for number in numbers:
        yield Trial("killed at a file operation", name, f"operation {number}", at_operation(bench, name, number))


def at_operation(bench: Bench, name: str, number: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, root = bench.settings[name], folder / "runs"

        def train() -> int:
            FileOperations(root, number, kill).install()
            return setting.train(*setting.arguments, f"runs_root={root}")

        ended = in_child(train)
        if ended.code != -signal.SIGKILL and (bad := crashed(ended)):
            return bad
        return resumed(bench, setting, root)

    return action


def killed_at_instants(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """Again and again at random instants of one run."""
    draw = seeded(seed, "instants", name)
    while True:
        delays = [round(draw.uniform(0.0, 1.0), 3) for _ in range(draw.randint(1, 3))]
        yield Trial("killed at random instants", name, f"after {delays} s", _at_instants(bench, name, delays))


def _at_instants(bench: Bench, name: str, delays: list[float]) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, root = bench.settings[name], folder / "runs"
        for delay in delays:
            ended = bench.run(setting, root, disturb=signal_after(delay, "SIGKILL"))
            if ended.code != -signal.SIGKILL and (bad := crashed(ended)):
                return bad
        return resumed(bench, setting, root)

    return action


def signalled(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """One or two signals that ask the run to stop, at random instants; or a pause (SIGSTOP)."""
    draw = seeded(seed, "signals", name)
    for kind in itertools.cycle((*SIGNALS, "SIGSTOP", "SIGTERM twice")):
        delay = round(draw.uniform(0.05, 1.0), 3)
        yield Trial("signal", name, f"{kind} after {delay} s", _with_signal(bench, name, kind, delay))


def _with_signal(bench: Bench, name: str, kind: str, delay: float) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, root = bench.settings[name], folder / "runs"
        ended = bench.run(setting, root, disturb=signal_after(delay, *kind.split(" ")))
        by_default = {-getattr(signal, number) for number in SIGNALS}  # before the program has set its handlers
        if ended.code not in by_default and (bad := crashed(ended)):
            return bad
        return resumed(bench, setting, root, last_only=True)  # a stop has saved at a step of its own

    return action


def signal_after(delay: float, name: str, again: str = "") -> Callable[[int], None]:
    def disturb(pid: int) -> None:
        time.sleep(delay)
        _send(pid, getattr(signal, name))
        if name == "SIGSTOP":
            time.sleep(0.3)
            _send(pid, signal.SIGCONT)
        if again:
            time.sleep(0.05)
            _send(pid, getattr(signal, name))

    return disturb


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def one_of_two_killed(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """Two processes over gloo; one of them is killed at a random instant, then both are started again."""
    draw = seeded(seed, "two", name)
    while True:
        rank, delay = draw.randrange(2), round(draw.uniform(0.1, 2.0), 3)
        yield Trial(
            "one of two processes killed", name, f"rank {rank} after {delay} s", _lose(bench, name, rank, delay)
        )


def _lose(bench: Bench, name: str, rank: int, delay: float) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting = bench.settings[name]
        ended = bench.run(setting, folder / "runs", disturb=_child_after(rank, delay))
        if bad := crashed(ended):
            return bad
        return resumed(bench, setting, folder / "runs")

    return action


def _child_after(number: int, delay: float) -> Callable[[int], None]:
    def disturb(pid: int) -> None:
        time.sleep(delay)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            pids = sorted(map(int, children.read_text().split()))
        except (OSError, ValueError):
            return
        if number < len(pids):
            _send(pids[number], signal.SIGKILL)

    return disturb
