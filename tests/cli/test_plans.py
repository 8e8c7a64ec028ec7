"""Plans (dry_run=true): what a command would run, and what it costs where that is known; the sweeps of the paper's
tables."""

import re
import shutil

import pytest

from fourierformer.files import read_json
from fourierformer.runs.directory import RunDirectory
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.command_line import train_lm, train_vit


def test_a_sweep_is_planned_in_a_line_per_job_and_done_runs_cost_nothing(smoke, tmp_path, capfd):
    assert train_lm(*smoke, "seed=1", f"runs_root={tmp_path}") == 0
    (run,) = tmp_path.glob("smoke/*-s1-*")
    directory = RunDirectory(run)
    measured = {"seconds": 2.0, "processes": 4, "steps": 4}  # on four devices a step takes the time of one four times
    directory.write(directory.summary, read_json(directory.summary) | measured)
    capfd.readouterr()
    assert train_lm("-m", *smoke, "seed=1,2", f"runs_root={tmp_path}", "dry_run=true") == 0
    lines = capfd.readouterr().out.splitlines()
    first, second = (line for line in lines if f"{tmp_path}/smoke" in line)
    assert (first[:13], second[:13]) == ("[1/2 seed=1] ", "[2/2 seed=2] ")
    assert "(done): 4 steps of 16 tokens = 64 tokens" in first
    # the run with the other seed has the time of a step
    assert "(new): 4 steps of 16 tokens = 64 tokens" in second
    assert second.endswith(f"0.1 CPU-minutes: 2 s per step, as in {run.name}")
    assert lines[-1].startswith("1 of 2 runs are to be done: 0.1 CPU-minutes at this machine's time per step")


def test_jobs_with_one_directory_are_planned_as_the_training_treats_them(smoke, tmp_path, capfd):
    sweep = ("-m", *smoke, f"runs_root={tmp_path}", "dry_run=true")
    assert train_lm(*sweep, "optim.lr=1e-3,0.001", "seed=1,2") == 0
    assert capfd.readouterr().out.splitlines()[-1] == "2 of 2 runs are to be done"
    place = f"run_dir={tmp_path / 'one'}"
    assert train_lm(*smoke, "seed=1", place) == 0
    capfd.readouterr()
    assert train_lm(*sweep, place, "seed=1,2") == 2
    printed, error = capfd.readouterr()
    assert printed.splitlines()[-1] == "0 of 1 runs are to be done"
    assert f"[2/2 seed=2] {tmp_path / 'one'} holds a run of another config: seed: 1 -> 2." in error
    assert "1 of 2 jobs would fail" in error


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ("builtin", "tokens are too few for 100000 streams of 64 + 1 tokens"),
        ("builtin_pixels", "a step takes more images than the 1,437 training images"),
        ("builtin_seq2seq", "a step takes more pairs than the 69,049 training pairs"),
    ],
)
def test_a_batch_that_the_data_cannot_fill_is_refused_as_by_the_training(experiment, message, tmp_path, capfd):
    command = (f"experiment={experiment}", "global_batch_size=100000", f"runs_root={tmp_path}")
    assert train_lm(*command, "dry_run=true") == 2
    assert message in capfd.readouterr().err


def test_multirun_may_stand_between_overrides(smoke, tmp_path, capfd):
    assert train_lm(*smoke, "-m", "seed=1,2", f"runs_root={tmp_path}", "dry_run=true") == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("2 of 2 runs are to be done")


@pytest.mark.parametrize("option", ["--config-d={}", "-cd {}"])  # argparse takes abbreviations
def test_a_folder_of_further_configs_leaves_a_sweep_a_sweep(tmp_path, capfd, option):
    (tmp_path / "attention").mkdir()
    sweep = ("sweep=quickstart", "seed=1", f"runs_root={tmp_path}", "dry_run=true")
    assert train_lm(*option.format(tmp_path).split(), *sweep) == 0
    printed = capfd.readouterr().out
    assert printed.startswith("loading ...")
    assert printed.splitlines()[-1].startswith("3 of 3 runs are to be done")


@pytest.fixture
def timed(smoke, finished, tmp_path, capfd):
    """A run whose step took 2 s, and a function that says what a run with another seed costs."""
    run = shutil.copytree(finished[1], tmp_path / "smoke" / finished[1].name)
    directory = RunDirectory(run)
    directory.write(directory.summary, read_json(directory.summary) | {"seconds": 8.0})  # its own are rounded to 0

    def cost() -> str:
        assert train_lm(*smoke, "seed=2", f"runs_root={tmp_path}", "dry_run=true") == 0
        (line,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("cost "))
        return line

    assert f"2 s per step, as in {run.name}" in cost()
    return run, cost


UNKNOWN = "cost         unknown until a run with another seed is finished here"


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("summary.json", "device", "cuda"),
        ("summary.json", "group", "of another rate"),
        ("meta.json", "cpus", 1_000_000),
    ],
)
def test_a_run_elsewhere_does_not_give_the_time_of_a_step_here(timed, file, key, value):
    run, cost = timed
    RunDirectory(run).write(run / file, read_json(run / file) | {key: value})
    assert cost().startswith(UNKNOWN)


@pytest.mark.full("two plans more")
@pytest.mark.parametrize(
    ("file", "before", "after"),
    [("config.yaml", "compile: auto", "compile: always"), ("summary.json", '"device"', '"a damaged file')],
)
def test_neither_does_a_run_compiled_otherwise_or_with_a_damaged_file(timed, file, before, after):
    run, cost = timed
    text = (run / file).read_text()
    assert before in text
    (run / file).write_text(text.replace(before, after))
    assert cost().startswith(UNKNOWN)


def test_a_plan_is_of_what_the_command_would_do(smoke, copied, tmp_path, capfd):
    root, run = copied
    plan = (*smoke, f"runs_root={root}", "dry_run=true")
    assert train_lm(*plan) == 0
    assert f"{run} (done)" in capfd.readouterr().out
    assert train_lm(*plan, "fresh=true") == 0  # an earlier run would be moved aside
    printed = capfd.readouterr().out
    assert f"{run} (new)" in printed
    assert "none: it is done" not in printed
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("text")
    assert train_lm(*smoke, f"run_dir={tmp_path / 'mine'}", "dry_run=true") == 2
    assert "is not a run directory and not empty (it has thesis.tex)" in capfd.readouterr().err


def test_a_resumed_run_costs_the_steps_that_are_left(smoke, copied, tmp_path, capfd):
    root, run = copied
    directory = RunDirectory(run)
    directory.write(directory.summary, read_json(directory.summary) | {"seconds": 8.0, "steps": 4})
    other = run.with_name(run.name.replace("-s1-", "-s9-"))
    shutil.copytree(run, other)  # gives the time of a step
    (run / "summary.json").unlink()
    for path in run.glob("checkpoints/step_00000004*"):
        shutil.rmtree(path)
    left = 4 - Checkpoints(run / "checkpoints").newest_step()
    assert 0 < left < 4
    assert train_lm("-m", *smoke, "seed=1", f"runs_root={root}", "dry_run=true") == 0
    (line,) = (line for line in capfd.readouterr().out.splitlines() if f"{run} (resumes)" in line)
    assert f"{60 * 2 * left / 3600:.1f} CPU-minutes: 2 s per step" in line


def test_what_this_machine_cannot_run_is_one_line_after_the_rest(smoke, tmp_path, capfd):
    overrides = ("attention=fourier", "attention.backend=foo", "dry_run=true")
    assert train_lm(*smoke, *overrides, f"runs_root={tmp_path}") == 2
    output = capfd.readouterr()
    assert "parameters   " in output.out
    assert output.err.startswith("error: attention=fourier on cpu: unknown Fourier attention backend 'foo'")
    assert output.err.count("\n") == 1


@pytest.mark.full("plans 88 runs")
@pytest.mark.parametrize(
    ("script", "sweep", "runs"),
    [(train_lm, "table1", 20), (train_vit, "table2", 10), (train_lm, "table3", 10), (train_lm, "radius", 48)],
)
def test_sweeps_of_the_papers_tables(script, sweep, runs, tmp_path, capfd):
    """Every job is a run of its own, under the name that the same run has without a sweep."""
    assert script(f"sweep={sweep}", "scale=quick", f"runs_root={tmp_path}", "dry_run=true") == 0
    planned = set(re.findall(rf"^\[\d+/{runs} .*\] ({tmp_path}\S+)", capfd.readouterr().out, flags=re.M))
    assert len(planned) == runs
    if script is train_lm:
        experiment = "builtin_short" if sweep == "radius" else "builtin"
        assert train_lm(f"experiment={experiment}", "attention=softmax", f"runs_root={tmp_path}", "dry_run=true") == 0
        alone = re.search(r"^directory +(\S+)", capfd.readouterr().out, flags=re.M)[1]
        assert alone in planned


def test_a_scale_without_the_sweeps_experiment_is_one_line(tmp_path, capfd):
    assert train_vit("sweep=table2", "scale=wikitext2", f"runs_root={tmp_path}") == 2
    error = capfd.readouterr().err
    assert error == (
        "error: this scale has no experiment 'vision': choose another, for example scale=quick (configs/scale)\n"
    )


def test_a_scale_that_a_sweep_does_not_read_is_one_line(tmp_path, capfd):
    assert train_lm("sweep=quickstart", "scale=wikitext2", f"runs_root={tmp_path}", "dry_run=true") == 2
    assert "scale=wikitext2 has no effect here" in capfd.readouterr().err


def test_a_plan_trains_nothing_and_ends_with_its_summary(smoke, tmp_path, monkeypatch, capfd):
    """The model takes no memory, no objective is built, and the config is printed by --cfg job only."""
    made = []
    monkeypatch.setattr("fourierformer.tasks.language.Language.objective", lambda *arguments: made.append(arguments))
    overrides = (*smoke, "model.dim=262144", "model.inner=262144", f"runs_root={tmp_path / 'runs'}")  # 550 GiB
    assert train_lm(*overrides, "dry_run=true") == 0
    lines = capfd.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert named[:3] == ["loading", "note:", "note:"]  # two keys are given twice
    assert named[3:] == ["model", "device", "parameters", "length", "memory", "data", "directory", "cost"]
    assert made == []
    assert not list(tmp_path.iterdir())


def test_a_sweep_without_its_data_is_planned_too(tmp_path, capfd):
    missing = ("data=wikitext2", "data.hub=null", f"data.root={tmp_path}/none", f"data.cache={tmp_path}/cache")
    sweep = ("-m", *missing, "seed=1,2", "trainer.steps=2000", f"runs_root={tmp_path}", "dry_run=true")
    assert train_lm(*sweep) == 2
    printed, error = capfd.readouterr()
    assert "2 of 2 runs are to be done" in printed
    assert "[1/2 seed=1] its data is missing; dry_run=true of this job alone says how to get it" in error
    assert "[1/2 seed=1] and 1 more: its data is missing" in error
    assert "[2/2 seed=2]" not in error
    assert "2 of 2 jobs would fail" in error
    assert "the same command goes on" not in error
