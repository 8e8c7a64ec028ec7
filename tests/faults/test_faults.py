"""A sample of every kind of fault: no traceback, no other weights, no silent change, no hang. And that the harness
notices all four."""

import os
import random
import sys
import time
from pathlib import Path

import pytest

from faults.campaign import campaign
from faults.children import in_child
from faults.settings import Bench, left_by, warm_up
from faults.trials import (
    BAD,
    DIFFERS,
    HANGS,
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

SECONDS = 150  # of the sample; with the runs that it compares with less than three minutes


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    made = Bench(tmp_path_factory.mktemp("faults") / "bench")
    made.folder.mkdir()
    return made


@pytest.mark.full("injects faults for three minutes")
@pytest.mark.timeout(400)
def test_no_fault_ends_in_a_traceback_other_weights_or_silence(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    warm_up(bench)
    seed = str(random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    tally = perform(campaign(bench, seed), tmp_path, until=time.monotonic() + SECONDS)
    assert tally.total > 20
    assert not tally.failures, f"python -m faults --seed {seed} draws the same faults; see what was printed"


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


def test_verdicts_are_counted_and_cheap_faults_get_more_trials(tmp_path):
    def trial(family: str, seconds: float, kind: str) -> Trial:
        def action(folder: Path) -> Verdict:
            time.sleep(seconds)
            return Verdict(kind)

        return Trial(family, "language", "", action)

    (tmp_path / "more").mkdir()
    groups = {
        "cheap": (trial("cheap", 0.001, SAME) for _ in range(1000)),
        "dear": (trial("dear", 0.02, DIFFERS) for _ in range(1000)),
    }
    said: list[str] = []
    tally = perform(in_turn(groups), tmp_path, until=time.monotonic() + 0.5, say=said.append)
    cheap, dear = tally.counts["cheap", "language"][SAME], tally.counts["dear", "language"][DIFFERS]
    assert cheap > 3 * dear > 0
    assert tally.failures == dear == len(said)
    assert tally.total == cheap + dear
    impossible = Trial("impossible", "language", "", lambda folder: 1 // 0)
    assert perform([impossible], tmp_path / "more", until=time.monotonic() + 1, say=said.append).failures == 1
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
    assert "resuming at step 4" in ended.output
    assert compared(bench, setting, tmp_path / "elsewhere").kind == SAME
