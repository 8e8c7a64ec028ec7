"""scripts/robustness.py on runs of two steps on built-in data."""

import json
import sys

import pytest

from fourierformer.analysis.robustness import saved
from fourierformer.files import read_csv
from fourierformer.report.robustness import robustness_chart
from fourierformer.results.metrics import metric
from fourierformer.runs.parts import open_run
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from tests.helpers.command_line import IMAGES, MODEL, REPOSITORY, only_run, train_lm, train_vit
from tests.helpers.synthetic_runs import write_run

sys.path.insert(0, str(REPOSITORY / "scripts"))
import evaluate
import robustness


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    root = tmp_path_factory.mktemp("language")
    swap = ("evaluation.word_swap=0.1", "evaluation.splits=[valid]", "evaluation.protocols=[segment]")
    assert train_lm(*MODEL, *swap, "trainer.steps=2", f"runs_root={root}") == 0
    return only_run(root)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    assert train_vit(*IMAGES, "trainer.steps=2", f"runs_root={root}") == 0
    return only_run(root)


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Runs one in this process; its exit code."""

    def run(*arguments, program=robustness) -> int:
        out = ["--out", str(tmp_path / "out")] if program is robustness else []
        monkeypatch.setattr(sys, "argv", [f"{program.__name__}.py", *map(str, arguments), *out])
        try:
            program.main()
        except SystemExit as end:
            return end.code
        return 0

    return run


def test_a_language_model_under_swapped_words(script, language, tmp_path, capsys, monkeypatch):
    """The numbers of the run itself, of scripts/evaluate.py and of this script are the same."""
    chosen = ("--split", "valid", "--protocol", "segment", "--limit", "4096")
    assert script(language, *chosen, "--levels", "0.1", "0.02") == 0
    own = json.loads((language / "summary.json").read_text())["results"]["valid"]
    clean, less, more = saved(language)
    assert clean["ppl"] == clean["ppl_unswapped"] == own["segment"]["ppl"]
    assert {key: more[key] for key in own["segment_swapped"]} == own["segment_swapped"]
    assert (clean["swapped"], less["level"], more["level"]) == (0, 0.02, 0.1)
    assert 0 < less["swapped"] < more["swapped"]

    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["robustness.csv", "robustness.png", "robustness.svg"]
    rows = read_csv(out / "robustness.csv").rows
    assert [row["ppl"] for row in rows] == [f"{entry['ppl']:.7g}" for entry in (clean, less, more)]
    header, *lines = [line.split() for line in capsys.readouterr().out.split("[1/1]")[1].splitlines() if "  " in line]
    assert header[:1] == ["clean"]
    assert [line[-3:] for line in lines[-2:]] == [
        [f"{entry[key]:,.2f}" for entry in (clean, less, more)] for key in ("ppl", "ppl_unswapped")
    ]

    monkeypatch.setattr(LanguageObjective, "measure_swapped", None)  # nothing is measured twice
    assert script(language, *chosen, "--levels", "0.02") == 0
    assert capsys.readouterr().out.count("(measured before)") == 2
    monkeypatch.undo()
    assert script(language, *chosen, "--levels", "0.02", "--seed", "3") == 0
    assert [(entry["level"], entry["attack_seed"]) for entry in saved(language)[3:]] == [(0.02, 3)]
    capsys.readouterr()
    assert script(language, *chosen, "--word-swap", "0.1", "--device", "cpu", program=evaluate) == 0
    printed = capsys.readouterr().out
    assert f"ppl {more['ppl']:,.2f}  ppl unswapped {more['ppl_unswapped']:,.2f}" in printed
    assert f"segment_swapped, context 8, stride 8, 4,080 tokens scored, {more['swapped']} words swapped" in printed


@pytest.mark.full("trains a classifier; the attacks have tests of their own")
def test_a_classifier_under_fgm_and_pgd_goes_on_after_a_stop(script, vision, capsys, monkeypatch):
    chosen = (vision, "--limit", "16", "--levels", "2", "200")
    measure, calls = ClassificationObjective.measure_attacked, []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(ClassificationObjective, "measure_attacked", stopped)
    with pytest.raises(KeyboardInterrupt):
        script(*chosen)
    assert [(entry["attack"], entry["level"]) for entry in saved(vision)] == [("clean", 0), ("fgm", 2), ("fgm", 200)]
    assert script(*chosen) == 0
    assert len(calls) == 5  # the third was stopped
    first = saved(vision)
    assert [(entry["attack"], entry["level"]) for entry in first[3:]] == [("pgd", 2), ("pgd", 200)]
    parts, step = open_run(vision, "cpu", limit=16)
    clean = parts.objective.measure(parts.model, "valid", "", lambda: None, lambda *progress: None)
    assert {key: first[0][key] for key in clean} == clean
    assert {entry["step"] for entry in first} == {step}
    assert {(entry["space"], entry["labels"]) for entry in first[1:]} == {("normalised", "predicted")}
    assert "builtin_images valid; space normalised, labels predicted" in capsys.readouterr().out

    (vision / "robustness.json").unlink()
    assert script(*chosen) == 0
    numbers = [[entry["nll"] for entry in entries] for entries in (first, saved(vision))]
    assert numbers[0] == numbers[1]
    assert script(*chosen, "--attacks", "fgm", "--space", "pixel", "--labels", "true") == 0
    *_, weak, strong = saved(vision)
    assert len(saved(vision)) == 7
    assert first[0]["nll"] < weak["nll"] < strong["nll"]  # away from the true labels


def test_each_attack_has_its_own_numbers_and_every_one_begins_at_the_clean_number():
    about = {"primary": "top1", "data": "d", "split": "valid", "protocol": "", "space": "pixel", "labels": "true"}
    values = {("clean", 0.0): 90.0, ("fgm", 2.0): 80.0, ("pgd", 2.0): 70.0, ("pgd", 4.0): 60.0}
    rows = [about | {"run": "r", "attack": a, "level": level, "top1": top1} for (a, level), top1 in values.items()]
    _, *lines, _ = [line.split() for line in robustness.table(rows).splitlines()]
    assert lines == [["r", "fgm", "top-1", "90.00", "80.00", "-"], ["r", "pgd", "top-1", "90.00", "70.00", "60.00"]]
    points = {name: robustness.points(rows, name, "top1") for name in robustness.attacks_of(rows)}
    panels = robustness_chart(points, metric("top1"), "eps").figure.axes
    assert {axes.get_title(): axes.lines[0].get_xydata().tolist() for axes in panels} == {
        "fgm": [[0, 90], [2, 80]],
        "pgd": [[0, 90], [2, 70], [4, 60]],
    }


def test_runs_of_one_name_are_told_apart_by_their_folders(script, tmp_path, monkeypatch):
    """Else their numbers would be the points of one line."""
    two = [write_run(tmp_path / folder, "softmax", 1) for folder in ("after", "before")]
    one = write_run(tmp_path / "before", "fourier", 1)
    names = []
    monkeypatch.setattr(robustness, "rows_of_run", lambda run, name, *_: names.append(name) or [])
    assert script(tmp_path) == 0
    assert sorted(names) == sorted([*map(str, two), one.name])


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("language", ("--levels", "0"), "--levels 0: a share of the words, more than 0 and at most 1"),
        ("language", ("--levels", "2"), "--levels 2: a share of the words, more than 0 and at most 1"),
        ("vision", ("--levels", "256"), "--levels 256: eps in 255ths, more than 0 and at most 255"),
        ("language", ("--attacks", "fgm"), "is attacked by word_swap, not by fgm"),
        ("vision", ("--attacks", "word_swap"), "is attacked by fgm or pgd, not by word_swap"),
        ("language", ("--space", "pixel"), "is a language model: --space and --labels are for images"),
        ("vision", ("--protocol", "segment"), "can be evaluated in one way only: leave out --protocol"),
        ("vision", ("--split", "test"), "has no test split: --split is one of train, valid"),
        ("vision", ("--limit", "0"), "--limit=0: must be at least 1"),
        ("vision", ("--seed", "-1"), "--seed=-1: must be at least 0"),
    ],
)
def test_a_wrong_input_is_one_clear_line(script, request, capsys, run, arguments, message):
    assert script(request.getfixturevalue(run), *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_of_two_kinds_need_two_calls(script, language, vision, capsys):
    assert script(language, vision, "--limit", "100", "--split", "valid", "--protocol", "segment", "--levels", "1") == 2
    printed, error = capsys.readouterr()
    assert "left out: " in printed
    assert "call the script once for each kind" in error
    assert language.name in printed.split("metric")[1]
