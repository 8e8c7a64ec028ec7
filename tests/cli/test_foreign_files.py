"""Run folders and exported models that somebody else made: their content is data, never an instruction."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import fourierformer
from fourierformer.config import config_hash, from_yaml
from fourierformer.errors import SetupError
from fourierformer.files import read_json, write_json
from fourierformer.runs.trained import export_run
from fourierformer.training.checkpoint import Checkpoints
from scripts import evaluate, export, generate, make_tables, report, show_attention, sweep_status
from tests.helpers.command_line import only_run, train_lm

SECRET = "hf_" + 5 * "a1b2"  # not as a word: dirty.diff of a run has the changes of this file
SCRIPTS = {
    export: ["{run}", "--to", "{tmp}/model"],
    evaluate: ["{run}", "--device", "cpu", "--limit", "100"],
    generate: ["{run}", "--device", "cpu", "--tokens", "3"],
    make_tables: ["{run}"],
    report: ["{run}"],
    show_attention: ["{run}", "--sequences", "2"],
    sweep_status: ["{run}"],
}


def start(script, arguments: list[str], monkeypatch) -> int:
    """Execute a script in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *arguments])
    try:
        script.main(script.parse()) if hasattr(script, "parse") else script.main()
    except SystemExit as end:
        return end.code or 0
    except SetupError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def texts(*folders: Path) -> str:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in files if path.suffix not in (".pt", ".safetensors"))


def with_config(run: Path, copy: Path, **changes: object) -> Path:
    """A copy of a run with another config, and with the hash of that config in every file that has one."""
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    values = from_yaml(run / "config.yaml") | changes
    step, state = Checkpoints(run / "checkpoints").latest()
    Checkpoints(copy / "checkpoints", config_hash=config_hash(values)).save(step, state, best=True)
    (copy / "config.yaml").write_text(yaml.safe_dump(values))
    for name in ("meta.json", "summary.json"):
        write_json(copy / name, read_json(copy / name) | {"config_hash": config_hash(values)})
    return copy


@pytest.fixture
def secret(monkeypatch) -> str:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return "${oc.env:HF_TOKEN}"


@pytest.fixture
def with_resolver(finished, tmp_path, secret) -> Path:
    return with_config(finished[1], tmp_path / "runs" / "run", experiment_name=secret)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_no_resolver_of_a_stored_config_runs_in_scripts(script, with_resolver, tmp_path, monkeypatch, capsys):
    arguments = [word.format(run=with_resolver, tmp=tmp_path) for word in SCRIPTS[script]]
    assert start(script, arguments, monkeypatch) == 0
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err + texts(tmp_path)


def test_no_resolver_of_an_export_runs(finished, tmp_path, secret):
    export_run(finished[1], tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["run"]["experiment_name"] = secret
    path.write_text(json.dumps(config))
    assert fourierformer.from_pretrained(path.parent, "cpu").spec.experiment_name == secret
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    importlib.import_module("fourierformer.integrations.hugging_face")  # registers the model type
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent)
    assert model.config.run["experiment_name"] == secret


def test_no_resolver_runs_where_a_command_meets_a_foreign_run(smoke, finished, tmp_path, secret, capsys):
    """The command compares its config with the stored one, and shows the difference."""
    copy = with_config(finished[1], tmp_path / "run", seed=secret)
    assert train_lm(*smoke, f"run_dir={copy}") == 2
    output = capsys.readouterr()
    assert "seed: ${oc.env:HF_TOKEN} -> 1" in output.err
    assert SECRET not in output.out + output.err + texts(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "experiment_name: !!python/object/apply:os.system ['touch {mark}']",
        "experiment_name: !!python/object/apply:pathlib.PosixPath ['x']",
        "experiment_name: !!binary aGVsbG8=",
        "experiment_name: [{{1: 2, a: 3}}]",
        "experiment_name: ${{oc.env",
        "experiment_name: [&a [1, 1], &b [*a, *a], &c [*b, *b]]",
    ],
)
def test_a_stored_config_of_other_types_is_one_line(line, finished, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(finished[1], copy)
    lines = [text for text in (copy / "config.yaml").read_text().splitlines() if "experiment_name" not in text]
    (copy / "config.yaml").write_text("\n".join([*lines, line.format(mark=tmp_path / "mark")]))
    with pytest.raises(SetupError, match=r"config\.yaml cannot be read") as error:
        fourierformer.load_run(copy, "cpu")
    assert "\n" not in str(error.value)
    assert not os.path.exists(tmp_path / "mark")


def test_a_secret_on_the_command_line_stays_out_of_all_files(smoke, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "the environment's own")  # hydra.job.env_set changes it
    assert train_lm(*smoke, f"runs_root={tmp_path}", f"+hydra.job.env_set.WANDB_API_KEY={SECRET}") == 0
    run = only_run(tmp_path)
    export_run(run, tmp_path / "model")
    assert "WANDB_API_KEY=***" in read_json(run / "meta.json")["command"]
    assert SECRET not in texts(tmp_path)
