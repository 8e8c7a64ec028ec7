"""Plans (dry_run=true): the cost of a command before it runs; the sweeps of the paper's tables."""

import re
import shutil

import pytest

from fourierformer.runs import cost
from fourierformer.runs.directory import RunDirectory
from tests.helpers.command_line import IMAGES, train_lm, train_vit

COST = re.compile(r"([\d,.]+) CPU-(minutes|hours)")


def test_the_cost_is_steps_times_seconds(smoke, tmp_path, capfd):
    assert train_lm(*smoke, "trainer.steps=7200", f"runs_root={tmp_path / 'runs'}", "dry_run=true") == 0
    line = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("cost "))
    hours, unit = COST.search(line).groups()
    seconds = float(re.search(r"([\d.e-]+) s per step \(measured now, 10 steps\)", line)[1])
    assert float(hours) * (60 if unit == "minutes" else 3600) == pytest.approx(7200 * seconds, rel=0.1, abs=3)
    assert not list(tmp_path.iterdir())


def test_a_batch_larger_than_what_was_timed_counts_in_full(tmp_path, monkeypatch, capfd):
    """24 rows cost three times the 8 that a CPU times."""
    monkeypatch.setattr(cost, "_time_steps", lambda fit, device: (0.5, 1))
    arguments = (*IMAGES, "global_batch_size=24", "trainer.steps=100", f"runs_root={tmp_path}", "dry_run=true")
    assert train_vit(*arguments) == 0
    assert "2.5 CPU-minutes: 1.5 s per step (measured now, 1 step with 8 of 24 rows)" in capfd.readouterr().out


def test_a_sweep_is_planned_in_a_line_per_job_and_done_runs_cost_nothing(smoke, tmp_path, capfd):
    assert train_lm(*smoke, "seed=1", f"runs_root={tmp_path}") == 0
    (run,) = tmp_path.glob("smoke/*-s1-*")
    directory = RunDirectory(run)
    directory.write_summary(directory.read_summary() | {"seconds": 8.0, "steps": 4})
    capfd.readouterr()
    assert train_lm("-m", *smoke, "seed=1,2", f"runs_root={tmp_path}", "dry_run=true") == 0
    lines = capfd.readouterr().out.splitlines()
    first, second = (line for line in lines if f"{tmp_path}/smoke" in line)
    assert (first[:13], second[:13]) == ("[1/2 seed=1] ", "[2/2 seed=2] ")
    assert "(done): 4 steps of 2 s, 0.0 CPU-hours" in first
    # the run with the other seed says what a step takes
    assert f"(new): 4 steps of 2 s, 0.1 CPU-minutes (as in {run.name})" in second
    assert lines[-1].startswith("1 of 2 runs are to be done: 0.1 CPU-minutes at this machine's time per step")


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("summary.json", '"device": "cpu"', '"device": "cuda"'),
        ("config.yaml", "compile: auto", "compile: always"),
        ("meta.json", '"cpus": ', '"cpus": 1'),
        ("summary.json", '"device"', '"a damaged file'),
    ],
)
def test_a_run_elsewhere_does_not_say_what_a_step_takes_here(smoke, finished, tmp_path, capfd, file, before, after):
    run = shutil.copytree(finished[1], tmp_path / "smoke" / finished[1].name)
    directory = RunDirectory(run)
    directory.write_summary(directory.read_summary() | {"seconds": 8.0})  # its own are rounded to 0
    plan = (*smoke, "seed=2", f"runs_root={tmp_path}", "dry_run=true")
    cost._known.clear()
    assert train_lm(*plan) == 0
    assert f"(as in {run.name})" in capfd.readouterr().out
    text = (run / file).read_text()
    assert before in text
    (run / file).write_text(text.replace(before, after))
    cost._known.clear()
    assert train_lm(*plan) == 0
    assert "measured now" in capfd.readouterr().out


def test_what_this_machine_cannot_time_is_one_line_after_the_rest(smoke, tmp_path, capfd):
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
def test_sweeps_of_the_papers_tables(script, sweep, runs, tmp_path, monkeypatch, capfd):
    """Every job is a run of its own, under the name that the same run has without a sweep."""
    monkeypatch.setattr(cost, "_measured", lambda spec, corpus: cost.StepCost(1.0, "as given"))
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


def test_the_plan_comes_first_and_has_a_cost_without_the_data(tmp_path, monkeypatch, capfd):
    """Timed on random data; it is missing all the same, so the exit code is 2."""
    monkeypatch.setattr(cost, "_time_steps", lambda fit, device: (fit.train_step(), (0.5, 1))[1])
    small = ("model.layers=1", "model.dim=16", "model.inner=16", "model.length=13", "global_batch_size=8")
    missing = ("data=wikitext2_bytes", "data.hub=null", f"data.root={tmp_path}/none", f"data.cache={tmp_path}/cache")
    arguments = (*missing, *small, f"runs_root={tmp_path}", "dry_run=true")
    assert train_lm(*arguments, "trainer.steps=7200") == 2
    printed, error = capfd.readouterr()
    assert error == "error: the data is missing (see above): nothing would run\n"
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["loading", "device", "parameters"]
    (at,) = [number for number, line in enumerate(lines) if line.startswith("cost ")]
    # 7200 steps of half a second
    assert (
        "1.0 CPU-hours: 0.5 s per step (measured now, 1 step, on random data in place of the missing one)" in lines[at]
    )
    assert lines[at + 2] == "task: language"

    assert train_vit("experiment=cifar10_deit", "model.depth=1", "data.hub=null", *missing[2:], "dry_run=true") == 2
    assert re.search(r"^cost .* on random data in place", capfd.readouterr().out, flags=re.M)


def test_a_sweep_without_its_data_is_planned_too(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(cost, "_measured", lambda spec, corpus: cost.StepCost(1.8, "as given"))
    missing = ("data=wikitext2", "data.hub=null", f"data.root={tmp_path}/none", f"data.cache={tmp_path}/cache")
    sweep = ("-m", *missing, "seed=1,2", "trainer.steps=2000", f"runs_root={tmp_path}", "dry_run=true")
    assert train_lm(*sweep) == 2
    printed, error = capfd.readouterr()
    assert "2 of 2 runs are to be done: 2.0 CPU-hours" in printed  # 2 runs of 2,000 steps of 1.8 s
    assert "[2/2 seed=2] its data is missing; dry_run=true of this job alone says how to get it" in error
    assert "2 of 2 jobs would fail" in error
    assert "the same command goes on" not in error
