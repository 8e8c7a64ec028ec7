"""Trackio without a network: rows are read back with Trackio's own reader."""

import json
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from fourierformer.tracking.trackio import TrackioTracker
from tests.helpers.command_line import REPOSITORY

SETTINGS = {"project": "fourierformer", "name": "lm_tiny-fourier-s1 0a1b2c3d", "group": "text/lm_tiny/fourier/1b2c3d4e"}


def test_a_run_and_its_continuation_read_back_as_they_were_logged(tmp_path):
    """In processes, because Trackio reads the folder of its data base when it is imported."""
    pytest.importorskip("trackio", reason="not installed: pip install trackio (it is no extra: it lowers Pillow)")
    code = f"""
        import sys
        from fourierformer.tracking.trackio import TrackioTracker

        tracker = TrackioTracker(**{SETTINGS}, config={{"seed": 1}}, samples=("tokens", (1000).__mul__))
        for step in map(int, sys.argv[1:]):
            tracker.log({{"step": step, "train_loss": 1 / step, "radius/00": 2.0}})
        tracker.summary({{"best/valid_ppl": 190.5}})
        tracker.close(0)
    """
    variables = os.environ | {"TRACKIO_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}

    def python(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], env=variables, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for steps in (("1", "2"), ("3", "4")):  # the second process resumes the run of this name
        assert (
            python("-c", textwrap.dedent(code), *steps)
            == "trackio: show it with: trackio show --project fourierformer\n"
        )
    where = ("--project", "fourierformer", "--run", SETTINGS["name"], "--json")
    run = json.loads(python("-m", "trackio.cli", "get", "run", *where))
    assert (run["num_logs"], run["config"]["seed"], run["config"]["_Group"]) == (6, 1, SETTINGS["group"])
    expected = {
        "tokens": [(1, 1000), (2, 2000), (3, 3000), (4, 4000)],
        "train_loss": [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)],
        "best/valid_ppl": [(2, 190.5), (4, 190.5)],
    }
    for metric, rows in expected.items():
        read = json.loads(python("-m", "trackio.cli", "get", "metric", *where, "--metric", metric))
        assert [(row["step"], row["value"]) for row in read["values"]] == rows


def test_what_it_is_given_where_it_is_not_installed(monkeypatch):
    """The calls of a stand-in: a run of this name that goes on, rows at their steps, numbers of the run at the last."""
    asked, done = [], []
    run = SimpleNamespace(log=lambda values, step: done.append((step, values)))

    def init(project, **options):
        asked.append((project, options))
        return run

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init, finish=lambda: done.append("finished")))
    tracker = TrackioTracker(**SETTINGS, samples=("tokens", (1000).__mul__), say=lambda message: None)
    tracker.log({"step": 2, "train_loss": 0.5})
    tracker.summary({"best/valid_ppl": 190.5})
    tracker.close(0)
    assert done == [(2, {"train_loss": 0.5, "tokens": 2000}), (2, {"best/valid_ppl": 190.5}), "finished"]
    ((project, options),) = asked
    assert {"project": project} | {key: options[key] for key in ("name", "group")} == SETTINGS
    assert options["resume"] == "allow"


def test_where_it_is_missing_the_training_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    said = []
    tracker = TrackioTracker(**SETTINGS, samples=("tokens", abs), say=said.append)
    tracker.log({"step": 1, "train_loss": 5.5})
    tracker.summary({"best/valid_ppl": 190.5})
    tracker.close(0)
    (line,) = said
    assert line.startswith("trackio is off for this run (ModuleNotFoundError")
    assert "pip install trackio" in line
