"""A tracker may fail; the training and the other trackers go on."""

import subprocess
import sys
import textwrap

import pytest

from fourierformer.errors import Interrupted, UserError
from fourierformer.tracking import Trackers, build_trackers
from fourierformer.tracking.jsonl import JsonlTracker
from tests.helpers.command_line import read_metrics


class Watcher:
    def __init__(self, fails_in=None, error=None):
        self.fails_in, self.error, self.calls = fails_in, error or RuntimeError("broken"), []

    def _hear(self, method, argument):
        if method == self.fails_in:
            raise self.error
        self.calls.append((method, argument))

    def log(self, row):
        self._hear("log", row)

    def summary(self, values):
        self._hear("summary", values)

    def close(self, exit_code):
        self._hear("close", exit_code)


def session(trackers):
    trackers.log({"step": 1})
    trackers.log({"step": 2})
    trackers.summary({"best/valid_ppl": 61.2})
    trackers.close(0)


EVERYTHING = [("log", {"step": 1}), ("log", {"step": 2}), ("summary", {"best/valid_ppl": 61.2}), ("close", 0)]


@pytest.mark.parametrize("method", ["log", "summary", "close"])
def test_a_failing_watcher_is_named_once_and_dropped(tmp_path, method):
    messages = []
    good, bad = Watcher(), Watcher(fails_in=method)
    session(Trackers(JsonlTracker(tmp_path / "metrics.jsonl"), [bad, good], messages.append))
    assert good.calls == EVERYTHING
    assert len(messages) == 1
    assert f"Watcher failed in {method} (RuntimeError: broken)" in messages[0]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_a_failure_of_metrics_jsonl_is_fatal(tmp_path, monkeypatch):
    trackers = Trackers(JsonlTracker(tmp_path / "metrics.jsonl"), [watcher := Watcher()])
    monkeypatch.setattr(trackers.metrics, "_file", open("/dev/full", "ab", buffering=0))  # noqa: SIM115
    with pytest.raises(UserError, match="No space left"):
        trackers.log({"step": 1})
    assert watcher.calls == []


def test_output_that_is_gone_stops_nothing(tmp_path):
    def say(message):
        raise BrokenPipeError

    trackers = Trackers(JsonlTracker(tmp_path / "metrics.jsonl"), [Watcher("log", BrokenPipeError())], say)
    session(trackers)
    assert trackers.others == []


def test_a_signal_passes_through(tmp_path):
    trackers = Trackers(JsonlTracker(tmp_path / "metrics.jsonl"), [Watcher("log", Interrupted(15))])
    with pytest.raises(Interrupted):
        trackers.log({"step": 1})


def test_a_value_that_is_not_plain_is_an_error_of_the_caller(tmp_path):
    with pytest.raises(TypeError):
        Trackers(JsonlTracker(tmp_path / "metrics.jsonl")).log({"step": 1, "loss": object()})


def test_build_and_rewind(tmp_path):
    trackers = build_trackers(tmp_path / "metrics.jsonl", console=Watcher())
    trackers.log({"step": 1})
    offset = trackers.position()
    trackers.log({"step": 2})
    trackers.rewind(offset)
    trackers.close(0)
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_tracking_is_light_until_somebody_watches():
    code = """
        import sys
        import fourierformer.tracking, fourierformer.tracking.console, fourierformer.tracking.wandb
        heavy = {"torch", "numpy", "wandb", "rich"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
