"""A small sample of every kind of fault: no traceback, no other weights, no silent change, no hang; and the harness
notices all four. `python -m faults` injects them at length."""

import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from faults import trials
from faults.campaign import campaign
from faults.children import COUNTED, Ended, in_child, in_process
from faults.foreign import foreign_json
from faults.guard import SCRIPTS, SECRET, judged, make_outside
from faults.places import JUNK
from faults.settings import Bench, left_by, warm_up
from faults.trials import (
    BAD,
    DIFFERS,
    HANGS,
    LEAKED,
    OUTSIDE,
    SAME,
    SILENT,
    TRACEBACK,
    Tally,
    Trial,
    Verdict,
    compared,
    crashed,
    in_turn,
    perform,
)
from fourierformer.files import read_json, write_json
from tests.helpers.command_line import REPOSITORY

SEED = "1-0"  # of the sample: what the first process of `python -m faults --seed 1` draws
TRIALS = 100  # two of most kinds; with the undisturbed runs that they are compared with two to four minutes
# what a trial takes on the fake clock, so that the sample has the same trials at every speed: others take a second
SECONDS = {"damaged data or checkpoint, then opened": 0.2, "damaged file of a finished run, then read": 0.2}


@dataclass
class FakeClock:
    """The module `time` as faults.trials uses it: it stands still but for what trials add."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def timed(self, drawn: Iterable[Trial]) -> Iterator[Trial]:
        for trial in drawn:
            yield trial
            self.now += SECONDS.get(trial.family, 1.0)


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(trials, "time", fake)
    return fake


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("faults") / "bench")
    made.folder.mkdir()
    return made


@pytest.mark.full("injects faults for some minutes")
@pytest.mark.timeout(1800)
def test_no_fault_ends_in_a_traceback_other_weights_or_silence(bench, tmp_path, monkeypatch, clock):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    warm_up(bench)
    tally = perform(islice(clock.timed(campaign(bench, SEED)), TRIALS), tmp_path, until=math.inf)
    assert tally.total == TRIALS
    assert len({family for family, _ in tally.counts}) >= 16
    assert not tally.failures, "see what was printed"


@pytest.mark.full("a run of its own, in a child")
def test_other_weights_and_other_files_are_noticed(bench, tmp_path):
    setting, root = bench.settings["language"], tmp_path / "runs"
    run = bench.copied("language", root)
    assert compared(bench, setting, root).kind == SAME
    (run / "litter.tmp").touch()
    assert compared(bench, setting, root).kind == SILENT
    other = bench.run(setting, tmp_path / "other", "seed=2")
    assert other.code == 0, other.text
    assert compared(bench, setting, tmp_path / "other").kind == DIFFERS
    (run / "summary.json").unlink()
    assert compared(bench, setting, root).kind == SILENT


def test_a_crash_and_a_hang_are_noticed():
    def crash() -> int:
        raise ZeroDivisionError

    assert crashed(in_child(crash)).kind == TRACEBACK
    assert crashed(in_child(lambda: sys.exit(1))).kind == TRACEBACK  # no reason was given
    assert crashed(in_child(lambda: time.sleep(60), seconds=0.2)).kind == HANGS
    assert crashed(in_child(lambda: os.kill(os.getpid(), 9))).kind == TRACEBACK
    assert crashed(in_child(lambda: 0)) is None

    def refuse() -> int:
        print("error: no such thing", file=sys.stderr)
        return 2

    assert crashed(in_child(refuse)) is None


def test_a_touched_file_a_secret_and_a_control_character_are_noticed(tmp_path):
    outside, ended = make_outside(tmp_path), Ended(0, "fine", "")
    assert judged(ended, tmp_path, outside) is None
    assert judged(Ended(0, "\x1b[2J", ""), tmp_path, outside).kind == LEAKED
    assert judged(Ended(0, "", SECRET), tmp_path, outside).kind == LEAKED
    (tmp_path / "config.json").write_text(f'{{"token": "{SECRET}"}}')
    assert judged(ended, tmp_path, outside).kind == LEAKED
    (tmp_path / "config.json").unlink()
    (outside / "new").touch()
    assert judged(ended, tmp_path, outside).kind == OUTSIDE
    (outside / "new").unlink()
    (outside / "folder" / "file").write_text("")
    assert judged(ended, tmp_path, outside).kind == OUTSIDE


def test_a_foreign_value_has_a_valid_checksum(tmp_path):
    values = {"state": "completed", "steps": 7, "results": {"valid": [1.5, None]}}
    found = []
    for number in range(9):
        write_json(tmp_path / "status.json", values)
        foreign_json(tmp_path, random.Random(number), tmp_path)
        found.append(read_json(tmp_path / "status.json"))
    assert sum(changed != values for changed in found) > 6


def test_every_script_is_among_those_that_read_foreign_runs_or_junk():
    known = {f"scripts/{name}" for name in SCRIPTS} | {program for program, *_ in JUNK}
    assert {f"scripts/{path.stem}" for path in (REPOSITORY / "scripts").glob("*.py")} <= known


def test_processes_are_counted_apart_from_forked_children(tmp_path):
    before = Counter(COUNTED)
    in_child(lambda: 0)
    ended = in_process("scripts/list_messages", "--help", folder=tmp_path)
    assert COUNTED - before == {"forked": 1, "started": 1}
    assert (ended.code, ended.traceback) == (0, False)


def test_verdicts_are_counted_and_cheap_faults_get_more_trials(tmp_path, clock):
    def trial(family: str, seconds: float, kind: str) -> Trial:
        def action(folder: Path) -> Verdict:
            clock.now += seconds
            return Verdict(kind)

        return Trial(family, "language", "", action)

    (tmp_path / "more").mkdir()
    groups = {
        "cheap": (trial("cheap", 1, SAME) for _ in range(1000)),
        "dear": (trial("dear", 5, DIFFERS) for _ in range(1000)),
    }
    said: list[str] = []
    tally = perform(in_turn(groups), tmp_path, until=99, say=said.append)
    cheap, dear = tally.counts["cheap", "language"][SAME], tally.counts["dear", "language"][DIFFERS]
    assert (cheap, dear) == (50, 10)  # of 100 seconds each has half
    assert tally.failures == dear == len(said)
    assert tally.total == cheap + dear
    impossible = Trial("impossible", "language", "", lambda folder: 1 // 0)
    assert perform([impossible], tmp_path / "more", until=math.inf, say=said.append).failures == 1
    assert "ZeroDivisionError" in said.pop()
    twice = Tally()
    twice.join(tally)
    twice.join(tally)
    assert (twice.total, twice.failures) == (2 * tally.total, 2 * dear)
    assert sum(row[DIFFERS] for row in twice.rows()) == 2 * dear
    assert {name for row in twice.rows() for name in row} >= set(BAD)


@pytest.mark.full("four runs of their own")
def test_a_seed_decides_the_weights_and_a_moved_run_goes_on(bench, tmp_path, monkeypatch):
    """The same seed twice has the same sha256, another seed another; another folder and host name change nothing."""
    setting = bench.settings["language, bf16, averaged"]
    expected = bench.undisturbed(setting.name)[1]
    assert bench.run(setting, tmp_path / "again").code == 0
    (again,) = [path.parent for path in (tmp_path / "again").rglob("summary.json")]
    assert left_by(again) == expected
    assert bench.run(setting, tmp_path / "other", "seed=2").code == 0
    (other,) = [path.parent for path in (tmp_path / "other").rglob("summary.json")]
    assert not set(left_by(other)["states"].values()) & set(expected["states"].values())

    bench.copied(setting.name, tmp_path / "here", unfinished=True)
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    monkeypatch.setattr("time.time", lambda clock=time.time: clock() - 10**7)
    ended = bench.run(setting, tmp_path / "elsewhere")
    assert ended.code == 0, ended.text
    assert " at step 4 of " in ended.output
    assert compared(bench, setting, tmp_path / "elsewhere").kind == SAME
