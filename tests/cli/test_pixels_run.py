"""Images as sequences through the whole path: train, measure, resume, measure again, and what is refused."""

import json
import shutil
import sys

import pytest

from scripts import evaluate
from tests.helpers.command_line import MODEL, only_run, rows, train_lm

RUN = ("experiment=builtin_pixels", *MODEL, "model.length=64", "global_batch_size=8", "evaluation.splits=[test]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(overrides, runs_root, its only run)"""
    root = tmp_path_factory.mktemp("pixels")
    overrides = (*RUN, f"data.cache={root / 'cache'}")
    assert train_lm(*overrides, f"runs_root={root / 'runs'}") == 0
    return overrides, root / "runs", only_run(root / "runs")


def test_a_run_is_measured_in_bits_per_dimension(trained):
    _, _, run = trained
    summary = json.loads((run / "summary.json").read_text())
    assert summary["primary"] == "bpd"
    # one layer of width 16: 4 * 16^2 + 2 * 16 * 16 + 16 + 16 + 4 * 16 = 1,632; embedding and bias 17 per shade
    assert summary["parameters"] == 1_632 + 17 * 17
    assert summary["tokens"] == 4 * 8 * 64
    numbers = summary["results"]["test"]["segment"]
    assert numbers["tokens"] == 4096 // 64 * 64  # debug=smoke limits evaluations
    assert numbers["context"] == numbers["stride"] == 64
    assert 3.9 < numbers["bpd"] < 4.3  # at its start a model knows nothing: log2(17) = 4.09
    assert [row["step"] for row in rows(run) if "valid_bpd" in row] == [2, 4]


def test_a_resumed_run_ends_with_the_same_numbers(trained, tmp_path):
    overrides, root, run = trained
    shutil.copytree(root, tmp_path / "runs")
    copy = tmp_path / "runs" / run.relative_to(root)
    newest = sorted((copy / "checkpoints").glob("step_*"))[-1]
    assert newest.name.endswith("4")
    shutil.rmtree(newest)
    for name in ("summary.json", "status.json", "evaluation.json"):
        (copy / name).unlink()
    assert train_lm(*overrides, f"runs_root={tmp_path / 'runs'}") == 0
    assert rows(copy) == rows(run)
    before, after = (json.loads((path / "summary.json").read_text())["results"] for path in (run, copy))
    assert after == before


def test_evaluate_measures_the_same(trained, monkeypatch, capsys):
    _, _, run = trained
    chosen = ("--split", "test", "--limit", "4096", "--protocol", "segment")
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(run), *chosen])
    evaluate.main()
    printed = capsys.readouterr().out
    expected = json.loads((run / "summary.json").read_text())["results"]["test"]["segment"]
    assert f"bpd {expected['bpd']:.3f}" in printed
    assert "segment, context 64, stride 64, 4,096 tokens scored" in printed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.length=63", "an image of 'builtin_pixels' is a sequence of 64 tokens: model.length=64"),
        ("evaluation.protocols=[segment,sliding]", "each image of 'builtin_pixels' is scored whole"),
        ("global_batch_size=1438", "a step takes more images than the 1,437"),
    ],
)
def test_what_images_do_not_allow_is_refused_in_one_line(trained, tmp_path, override, message, capfd):
    overrides, _, _ = trained
    assert train_lm(*overrides, f"runs_root={tmp_path}", override) == 2
    error = capfd.readouterr().err
    assert message in error
    assert "Traceback" not in error
