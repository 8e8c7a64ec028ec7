"""The search for hyper-parameters: its trials, what is judged, and how it goes on after a stop. No run is trained."""

import json
import signal
import subprocess
import sys

import pytest

from fourierformer.errors import SetupError
from tests.helpers.command_line import REPOSITORY

pytest.importorskip("optuna", reason="Optuna is not installed: pip install -e '.[tune]'")
tune = pytest.importorskip("scripts.tune")

SPACE = ("attention=softmax", "optim.lr=tag(log,interval(1e-4,1e-2))", "model.layers=int(interval(1,3))")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """tune(trials, ...) -> (exit code, the overrides of each training). The perplexity of a run is 1 / lr + its
    layers: the best has the highest rate."""
    outcomes: list[int] = []  # what the next trainings end with, where it is not 0

    def run(trials, *overrides, ends=(), name="study"):
        outcomes[:] = ends
        trained = []

        def train(command):
            chosen = command[5:]
            trained.append(chosen)
            code = outcomes.pop(0) if outcomes else 0
            if code == 0:
                spec = tune.spec_of("lm", chosen)
                spec.directory.mkdir(parents=True)
                best = {"valid_ppl": 1 / spec.optim.lr + spec.model.layers}
                (spec.directory / "summary.json").write_text(json.dumps({"best": best}))
            return code

        monkeypatch.setattr(tune, "train", train)
        given = ("lm", *(overrides or SPACE), f"runs_root={tmp_path}", "--trials", str(trials), "--name", name)
        monkeypatch.setattr("sys.argv", ["tune.py", *given])
        with pytest.raises(SystemExit) as end:
            tune.main()
        return end.value.code, trained

    return run


def test_a_study_goes_on_after_a_stop_with_the_values_it_was_trying(command, capsys):
    code, first = command(3, ends=[0, 130])
    assert (code, len(first)) == (130, 2)
    assert "the same command goes on" in capsys.readouterr().err
    code, second = command(3)
    assert (code, len(second)) == (0, 2)
    assert second[0] == first[1]
    assert all(run[0] == "attention=softmax" for run in first + second)
    rates = [float(run[2].removeprefix("optim.lr=")) for run in [first[0], *second]]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert len(set(rates)) == 3
    assert {run[3] for run in [first[0], *second]} <= {f"model.layers={n}" for n in (1, 2, 3)}
    best = next(line for line in capsys.readouterr().out.splitlines() if "  python train_lm.py " in line)
    assert f"optim.lr={max(rates)}" in best
    assert command(3) == (0, [])  # it has its three


def test_the_best_accuracy_is_the_highest(tmp_path, monkeypatch, capsys):
    rates = []

    def train(command):
        spec = tune.spec_of("vit", command[5:])
        rates.append(spec.optim.lr)
        spec.directory.mkdir(parents=True)
        (spec.directory / "summary.json").write_text(json.dumps({"best": {"valid_top1": 1000 * spec.optim.lr}}))
        return 0

    monkeypatch.setattr(tune, "train", train)
    given = ("vit", "optim.lr=interval(1e-4,1e-2)", f"runs_root={tmp_path}", "--trials", "3")
    monkeypatch.setattr("sys.argv", ["tune.py", *given])
    with pytest.raises(SystemExit) as end:
        tune.main()
    assert (end.value.code, len(set(rates))) == (0, 3)
    listed = [line.split("optim.lr=")[1] for line in capsys.readouterr().out.splitlines() if "train_vit.py " in line]
    assert listed == [str(rate) for rate in sorted(rates, reverse=True)]


def test_a_diverged_trial_counts_and_a_set_up_error_ends_the_search(command, capsys):
    code, trained = command(2, ends=[3], name="diverging")
    assert (code, len(trained)) == (0, 2)
    assert capsys.readouterr().out.count("  python train_lm.py ") == 1  # of the one that has a value
    code, trained = command(2, ends=[2], name="broken")
    assert (code, len(trained)) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_training(number):
    """As a scheduler sends it, to this process only; the training saves and ends with 143."""
    code = "import sys; from scripts.tune import train; sys.exit(train(sys.argv[1:]))"
    child = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143));"
        "print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, sys.executable, "-c", child]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(60) == 143


def test_after_a_signal_between_two_trials_no_other_begins(command, monkeypatch, capsys):
    monkeypatch.setattr(tune, "received", [signal.SIGINT])
    assert command(2) == (130, [])
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(tune, "received", [])
    code, trained = command(2)
    assert (code, len(trained)) == (0, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("optim.lr=1e-3",), "nothing to search"),
        (("optim.lrr=choice(1,2)",), "unknown key 'optim.lrr'"),
        (("optim.lr=interval(2,1)",), "optim.lr=interval(2,1): "),
        (("optim.lr=choice(",), "cannot read 'optim.lr=choice('"),
        ((*SPACE, "dry_run=true"), "dry_run=true trains nothing"),
        ((*SPACE, "--seed", "-1"), "--seed=-1: must be at least 0"),
        ((*SPACE, "sweep=quickstart"), "sweep=quickstart: a trial is one run, not a sweep"),
        ((*SPACE[1:], "attention=glob(*)"), "attention=glob(*): name the values"),
        ((*SPACE[1:], "attention=1"), "attention=1: no such attention"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(command, overrides, message, capsys):
    assert command(2, *overrides) == (2, [])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


def test_a_damaged_database_is_one_line(command, tmp_path, capsys):
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune/study.db").write_text(100 * "x")
    assert command(1) == (2, [])
    assert "study.db cannot be used as the database of a study (" in capsys.readouterr().err


def test_null_is_a_choice(command):
    code, trained = command(2, "trainer.clip=null,0.5", "seed=1,2")
    assert (code, len(trained)) == (0, 2)
    assert {run[1] for run in trained} <= {"trainer.clip=null", "trainer.clip=0.5"}
    assert tune.override_of("trainer.clip", None) == "trainer.clip=null"
    assert tune.spec_of("lm", [tune.override_of("trainer.clip", None)]).trainer.clip is None


def test_a_study_keeps_its_search_space(command):
    assert command(1)[0] == 0
    code, trained = command(1, "optim.lr=choice(1e-3,2e-3)")
    assert (code, trained) == (2, [])


def test_choices_and_ranges_become_values_of_the_config():
    fixed, searched = tune.split(["a=1", "b=choice(1,2.5,true,x)", "c=range(1,4)", "d=interval(0.0,1.0)"])
    assert fixed == ["a=1"]
    assert searched["b"][1].choices == (1, 2.5, True, "x")
    assert searched["c"][1].choices == (1, 2, 3)
    assert (searched["d"][1].low, searched["d"][1].high) == (0.0, 1.0)
    with pytest.raises(SetupError):
        tune.split(["a=1"])


def test_a_logarithmic_scale_reaches_the_sampler():
    """On a linear one nine tenths of the rates from 1e-4 to 1e-2 would be above 1e-3."""
    _, searched = tune.split(
        ["lr=tag(log,interval(1e-4,1e-2))", "n=tag(log,int(interval(1,64)))", "p=interval(0.0,1.0)"]
    )
    trial = pytest.importorskip("optuna").create_study().ask()
    for key, (_, distribution) in searched.items():
        tune.suggest(trial, key, distribution)
    assert {key: distribution.log for key, distribution in trial.distributions.items()} == {
        "lr": True,
        "n": True,
        "p": False,
    }
