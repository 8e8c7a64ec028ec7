"""Plans (dry_run=true): the cost of a command before it runs; the sweeps of the paper's tables."""

import json
import re

import pytest
from command_line import IMAGES, train_lm, train_vit

from fourierformer.runs import cost

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
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"seconds": 8.0, "steps": 4}))
    capfd.readouterr()
    assert train_lm("-m", *smoke, "seed=1,2", f"runs_root={tmp_path}", "dry_run=true") == 0
    lines = capfd.readouterr().out.splitlines()
    first, second = (line for line in lines if f"{tmp_path}/smoke" in line)
    assert (first[:13], second[:13]) == ("[1/2 seed=1] ", "[2/2 seed=2] ")
    assert "(done): 4 steps of 2 s, 0.0 CPU-hours" in first
    # the run with the other seed says what a step takes
    assert f"(new): 4 steps of 2 s, 0.1 CPU-minutes (as in {run.name})" in second
    assert lines[-1].startswith("1 of 2 runs are to be done: 0.1 CPU-minutes at this machine's time per step")


@pytest.mark.full("plans 88 runs")
@pytest.mark.parametrize(
    ("script", "sweep", "runs"),
    [(train_lm, "table1", 20), (train_vit, "table2", 10), (train_lm, "table3", 10), (train_lm, "radius", 48)],
)
def test_sweeps_of_the_papers_tables(script, sweep, runs, tmp_path, monkeypatch, capfd):
    """Every job is a run of its own, under the name that the same run has without a sweep."""
    monkeypatch.setattr(cost, "_measured", lambda values: cost.StepCost(1.0, "as given"))
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
