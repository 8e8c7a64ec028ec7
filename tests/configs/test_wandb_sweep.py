"""configs/wandb_sweep.yaml, as wandb reads it: every trial that it can choose is a command of ours."""

import itertools

import pytest
import yaml
from hydra import compose, initialize_config_dir

from fourierformer.runs.measure import final_numbers
from fourierformer.runs.spec import read_command
from tests.helpers.command_line import CONFIGS

CONFIG = yaml.safe_load((CONFIGS / "wandb_sweep.yaml").read_text())


def as_documented(command: dict) -> dict[str, list[str]]:
    """What a command's ${args_no_hyphens} stands for."""
    return {"args_no_hyphens": [f"{name}={chosen['value']}" for name, chosen in command["args"].items()]}


def as_wandb_does(command: dict) -> dict[str, list[str]]:
    return pytest.importorskip("wandb.sdk.launch.sweeps.utils").create_sweep_command_args(command)


@pytest.mark.parametrize(
    "arguments", [as_documented, pytest.param(as_wandb_does, marks=pytest.mark.full("imports wandb's own launcher"))]
)
def test_every_choice_of_a_wandb_agent_is_a_run(arguments):
    assert {"program", "method", "metric", "parameters"} <= set(CONFIG)
    ends = [known.get("values") or [known["min"], known["max"]] for known in CONFIG["parameters"].values()]
    for values in zip(*ends, strict=True):  # of each parameter both ends
        chosen = {name: {"value": value} for name, value in zip(CONFIG["parameters"], values, strict=True)}
        made = {"program": [CONFIG["program"]], "env": [], "interpreter": []} | arguments({"args": chosen})
        words = list(itertools.chain(*(made.get(word.strip("${}"), [word]) for word in CONFIG["command"])))
        assert words[0] == "train_lm.py"
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            spec = read_command(compose("train_lm", words[1:]))
        assert (spec.tracker.name, spec.attention.name, spec.optim.lr, spec.model.dropout) == ("wandb", *values)


def test_its_metric_is_one_that_a_run_reports():
    metric = CONFIG["metric"]
    best = {"step": 10, "valid_ppl": 50.0}
    summary = {"primary": "ppl", "task": "language", "best": best, "results": {}, "unit": "tokens"}
    summary |= {"parameters": 1, "seconds": 1.0, "tokens_per_s": 1.0}
    assert final_numbers(summary)[metric["name"]] == 50.0
    assert metric["goal"] == "minimize"
