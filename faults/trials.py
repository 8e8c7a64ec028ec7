"""One trial and its verdict; how verdicts are counted."""

import random
import re
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults.children import COUNTED, Ended
from faults.settings import Bench, Setting, left_by
from fourierformer.results.faults import BAD, COMMANDS, GOOD

SAME, REFUSED, NAMED, ACCEPTED, UNTRAINED = GOOD
TRACEBACK, DIFFERS, SILENT, HANGS, OUTSIDE, LEAKED = BAD


@dataclass(frozen=True)
class Verdict:
    kind: str
    evidence: str = ""  # of a bad one: what was printed, or what differs

    @property
    def good(self) -> bool:
        return self.kind in GOOD


@dataclass(frozen=True)
class Trial:
    """`action` harms something and judges what comes of it."""

    family: str  # line of the table: "killed at a file operation"
    target: str  # "language", "config.yaml"
    fault: str  # what exactly was done, so that it can be repeated
    action: Callable[[Path], Verdict]  # gets an empty folder


@dataclass
class Tally:
    """What came out of many trials, by family and target."""

    counts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    used: dict[tuple[str, str], Counter] = field(default_factory=dict)  # seconds, and commands
    failures: int = 0

    def add(self, trial: Trial, verdict: Verdict, used: Counter) -> None:
        key = trial.family, trial.target
        line = self.counts.setdefault(key, dict.fromkeys((*GOOD, *BAD), 0))
        line[verdict.kind] += 1
        self.used.setdefault(key, Counter()).update(used)
        self.failures += not verdict.good

    def join(self, other: "Tally") -> None:
        for key, line in other.counts.items():
            mine = self.counts.setdefault(key, dict.fromkeys(line, 0))
            self.counts[key] = {kind: mine[kind] + count for kind, count in line.items()}
            self.used.setdefault(key, Counter()).update(other.used[key])
        self.failures += other.failures

    @property
    def total(self) -> int:
        return sum(sum(line.values()) for line in self.counts.values())

    def rows(self) -> list[dict]:
        """For results/measured/faults.csv."""
        return [
            {"fault": key[0], "target": key[1], "trials": sum(line.values()), **line}
            | {name: self.used[key][name] for name in (*COMMANDS, "seconds")}
            for key, line in sorted(self.counts.items())
        ]


def perform(trials: Iterable[Trial], folder: Path, *, until: float, say=print) -> Tally:
    """Runs trials one after the other, until there are no more or the time `until` (of time.monotonic) has come."""
    tally = Tally()
    for number, trial in enumerate(trials):
        if time.monotonic() > until:
            break
        started, before = time.monotonic(), Counter(COUNTED)
        place = folder / f"{number:05d}"
        place.mkdir()
        try:
            verdict = trial.action(place)
        except Exception:
            verdict = Verdict(TRACEBACK, f"in the trial itself\n{traceback.format_exc()}")
        tally.add(trial, verdict, Counter(seconds=time.monotonic() - started) + (COUNTED - before))
        if not verdict.good:
            say(f"{verdict.kind}: {trial.family}, {trial.target}, {trial.fault}, in {place}\n{verdict.evidence}\n")
        else:
            shutil.rmtree(place, ignore_errors=True)
    return tally


def in_turn(groups: dict[str, Iterable[Trial]]) -> Iterator[Trial]:
    """The next trial is of the group that took the least time so far: cheap faults get more trials than long ones, and
    a campaign that is cut short has had some of all."""
    running = {name: iter(group) for name, group in groups.items()}
    used = dict.fromkeys(groups, 0.0)
    while running:
        name = min(running, key=used.__getitem__)
        trial = next(running[name], None)
        if trial is None:
            del running[name]
            continue
        started = time.monotonic()
        yield trial
        used[name] += time.monotonic() - started


def crashed(ended: Ended) -> Verdict | None:
    """The verdict on a command that hung, crashed or printed a traceback; None for one that ended in order."""
    if ended.code is None:
        return Verdict(HANGS, ended.text[-3000:])
    if ended.traceback or ended.code < 0 or ended.code == 99:
        return Verdict(TRACEBACK, ended.text[-6000:])
    if ended.code in (1, 2) and not re.search(r"error: |^FAIL ", ended.text, flags=re.MULTILINE):  # FAIL: of doctor.py
        return Verdict(TRACEBACK, f"exit code {ended.code} and no reason\n{ended.text[-3000:]}")
    return None


def resumed(
    bench: Bench, setting: Setting, root: Path, *, may_refuse: bool = False, last_only: bool = False
) -> Verdict:
    """Runs the same command again, undisturbed: it has to end with all that an undisturbed run leaves. Where files were
    damaged it may refuse instead."""
    ended = bench.run(setting, root)
    if bad := crashed(ended):
        return bad
    if ended.code:
        return Verdict(REFUSED if may_refuse else DIFFERS, ended.text[-3000:])
    return compared(bench, setting, root, last_only=last_only, said=ended.text)


def compared(bench: Bench, setting: Setting, root: Path, *, last_only: bool = False, said: str = "") -> Verdict:
    """Whether the one run below `root` has left what an undisturbed one leaves. `last_only`: of its checkpoints, the
    last one, where others are right too: one that a stop saved, that the trial replaced, that could not be deleted.
    An older checkpoint that nothing needed may stay damaged if it is named in what was `said`."""
    runs = [path.parent for path in root.rglob("summary.json")]
    if len(runs) != 1:
        return Verdict(SILENT, f"{len(runs)} finished runs in {root}")
    expected, found = dict(bench.undisturbed(setting.name)[1]), left_by(runs[0])
    if last_only:
        for left in (expected, found):
            last = max(left["states"], default="")
            left["states"] = {last: left["states"].get(last)}
            left["files"] = [name for name in left["files"] if not name.startswith("checkpoints/")]
    differing = [key for key in expected if expected[key] != found[key]]
    if not differing:
        return Verdict(SAME)
    if differing == ["states"] and _others_are_named(expected["states"], found["states"], said):
        return Verdict(NAMED)
    kind = DIFFERS if differing != ["files"] else SILENT
    return Verdict(kind, "\n".join(f"{key}: {expected[key]}\n  now {found[key]}" for key in differing)[:6000])


def _others_are_named(expected: dict[str, str], found: dict[str, str], said: str) -> bool:
    """Whether all intact checkpoints are as they should be, the last one among them, and the output names the rest."""
    right = max(expected) in found and all(expected.get(name) == state for name, state in found.items())
    return right and all(re.search(rf"{name}\S* is damaged", said) for name in expected.keys() - found.keys())


def seeded(seed: str, *names: object) -> random.Random:
    """A generator that depends on nothing but these."""
    return random.Random("/".join(map(str, (seed, *names))))
