"""configs/wandb_sweep.yaml, as wandb reads it: every trial that it can choose is a command of ours."""

import itertools

import pytest
from hydra import compose, initialize_config_dir

from fourierformer.runs.measure import final_numbers
from fourierformer.runs.spec import read_command
from tests.helpers.command_line import CONFIGS

utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")


def test_every_choice_of_a_wandb_agent_is_a_run():
    config = utils.load_sweep_config(str(CONFIGS / "wandb_sweep.yaml"))
    assert {"program", "method", "metric", "parameters"} <= set(config)
    ends = [known.get("values") or [known["min"], known["max"]] for known in config["parameters"].values()]
    for values in itertools.product(*ends):
        chosen = {name: {"value": value} for name, value in zip(config["parameters"], values, strict=True)}
        made = {"program": [config["program"]], "env": [], "interpreter": []}
        made |= utils.create_sweep_command_args({"args": chosen})
        words = list(itertools.chain(*(made.get(word.strip("${}"), [word]) for word in config["command"])))
        assert words[0] == "train_lm.py"
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            spec = read_command(compose("train_lm", words[1:]))
        assert (spec.tracker.name, spec.attention.name, spec.optim.lr, spec.model.dropout) == ("wandb", *values)


def test_its_metric_is_one_that_a_run_reports():
    metric = utils.load_sweep_config(str(CONFIGS / "wandb_sweep.yaml"))["metric"]
    best = {"step": 10, "valid_ppl": 50.0}
    summary = {"primary": "ppl", "task": "language", "best": best, "results": {}, "unit": "tokens"}
    summary |= {"parameters": 1, "seconds": 1.0, "tokens_per_s": 1.0}
    assert final_numbers(summary)[metric["name"]] == 50.0
    assert metric["goal"] == "minimize"
