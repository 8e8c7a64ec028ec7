"""The README says nothing that the code does not do: its commands compose, its names exist."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import one_job
from hydra import compose, initialize_config_dir

from fourierformer import attention
from fourierformer.runs.spec import read_spec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.S | re.M)
SHELL = "\n".join(block for language, block in BLOCKS if not language).replace("\\\n", " ")
COMMANDS = [line.split(" #")[0].strip() for line in SHELL.splitlines()]
TRAINING = [c for c in COMMANDS if re.match(r"python train_(lm|vit)\.py", c)]
SCRIPTS = sorted({c.split()[1] for c in re.findall(r"python scripts/\w+\.py", README)})


@pytest.mark.parametrize("command", TRAINING)
def test_training_commands_compose_into_valid_configs(command):
    _, script, *arguments = shlex.split(command)
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        config = compose(script.removesuffix(".py"), overrides=one_job(arguments))
    read_spec(config)


def test_the_readme_has_training_commands():
    assert sum("train_lm.py" in command for command in TRAINING) > 8
    assert sum("train_vit.py" in command for command in TRAINING) > 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_named_there_exist_and_explain_themselves(script):
    result = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout


def test_make_targets_named_there_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert {"train", "test"} <= set(re.findall(r"`?make ([a-z-]+)`?", README)) <= targets


def test_the_attention_table_lists_every_choice():
    table = README.split("## Attention choices")[1].split("As a function")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, flags=re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(attention.available())


@pytest.mark.parametrize(("experiment", "count"), [("wt103_small", "44.0M"), ("wt103_medium", "89.8M")])
def test_experiments_named_there_have_the_numbers_it_gives(experiment, count):
    row = next(line for line in README.splitlines() if line.startswith(f"| `experiment={experiment}`"))
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        spec = read_spec(compose("train_lm", overrides=[f"experiment={experiment}"]))
    batch, length, steps = spec.global_batch_size, spec.model.length, spec.trainer.steps
    assert f"{batch} x {length} tokens, {steps:,} steps" in row
    assert count in row


def test_the_python_example_runs():
    (code,) = [block for language, block in BLOCKS if language == "python"]
    names: dict = {}
    exec(code, names)
    assert names["y"].shape == (2, 8, 256, 16)


def test_data_sets_named_there_have_a_config():
    table = README.split("## Data")[1].split("## Attention")[0]
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, flags=re.M)))) - {"data"}
    assert named == {p.stem for p in (ROOT / "configs/data").glob("*.yaml")}


def test_metrics_rows_are_as_it_shows_them():
    rows = [json.loads(row.replace(", ...", "")) for row in re.findall(r'`(\{"step".*?\})`', README)]
    assert [sorted(row) for row in rows] == [["step", "train_loss"], ["step", "valid_ppl"]]


def test_configs_are_yaml_with_a_comment_on_top():
    for path in (ROOT / "configs").rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("#"), f"{path.name} does not say what it is"
        assert isinstance(yaml.safe_load(text), dict), path.name
