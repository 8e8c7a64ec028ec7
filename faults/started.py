"""Processes of their own, from the first import on: signals and too little memory while they start, and an environment
that nobody wants. Then the same command, which has to end as an undisturbed run does."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import Ended, in_process, limit_memory
from faults.settings import Bench
from faults.stops import SIGNALS, signal_after
from faults.trials import Trial, Verdict, crashed, resumed, seeded

ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {"MPLBACKEND": "module://not.installed"},
    {"MPLBACKEND": "nonsense"},
    {"HOME": "/dev/null/none"},
    {"HOME": "/dev/null"},
    {"TMPDIR": "/dev/null/none"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
    {"COLUMNS": "0"},
    {"COLUMNS": "many"},
    {"OMP_NUM_THREADS": "many"},
    {"CUDA_VISIBLE_DEVICES": "nonsense"},
    {"TERM": "nonsense", "FORCE_COLOR": "1"},
    {"RANK": "1"},
    {"WORLD_SIZE": "many", "RANK": "0"},
    {"HYDRA_FULL_ERROR": "1"},
    {"XDG_CACHE_HOME": "/dev/null"},
    {"CXX": "/dev/null/none"},
    {"TZ": "nonsense"},
)


def started(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    draw = seeded(seed, "started", name)
    while True:
        kind = draw.choice(("signal", "signal", "memory", "environment"))
        if kind == "signal":
            number, delay = draw.choice((*SIGNALS, "SIGKILL")), round(draw.uniform(0, 8), 3)
            fault, action = f"{number} after {delay} s", _signalled(bench, name, number, delay)
        elif kind == "memory":
            size = round(draw.uniform(0.3, 6), 2)
            fault, action = f"{size} GiB of addresses", _with_little_memory(bench, name, size)
        else:
            chosen = draw.choice(ENVIRONMENTS)
            fault, action = str(chosen), _with_environment(bench, name, chosen)
        yield Trial(f"process of its own: {kind} at the start", name, fault, action)


def _program(bench: Bench, name: str, folder: Path, **options) -> Ended:
    setting = bench.settings[name]
    return in_process(
        setting.train.__name__, *setting.arguments, f"runs_root={folder / 'runs'}", folder=folder, **options
    )


def _signalled(bench: Bench, name: str, number: str, delay: float) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        ended = _program(bench, name, folder, disturb=signal_after(delay, number))
        if ended.code != -getattr(signal, number) and (bad := crashed(ended)):  # before a handler is set
            return bad
        return resumed(bench, bench.settings[name], folder / "runs", last_only=True)

    return action


def _with_little_memory(bench: Bench, name: str, size: float) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        ended = _program(bench, name, folder, prepare=lambda: limit_memory(size))
        said = ended.code == -signal.SIGABRT and "raise the limit if it aborts" in ended.output  # in C++, after a note
        bad = None if said else crashed(ended)
        return bad or resumed(bench, bench.settings[name], folder / "runs", last_only=True)

    return action


def _with_environment(bench: Bench, name: str, chosen: dict[str, str]) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        ended = _program(bench, name, folder, **chosen)
        return crashed(ended) or resumed(bench, bench.settings[name], folder / "runs")

    return action
