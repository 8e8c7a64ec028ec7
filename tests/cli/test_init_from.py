"""init_from=RUN: another run, that starts at step 0 from the weights of RUN's best checkpoint."""

import json
import shutil

import pytest
import torch

import fourierformer
from fourierformer.files import read_json
from fourierformer.runs.parts import stored_checkpoint
from fourierformer.runs.spec import stored_spec
from fourierformer.runs.trained import export_run
from fourierformer.training.checkpoint import Checkpoints
from tests.helpers.command_line import only_run, train_lm


def weights(run, *, last: bool = False) -> dict:
    return stored_checkpoint(run, stored_spec(run).hash, last=last)[1]["model"]


def test_it_starts_from_the_best_weights_with_a_hash_of_its_own(smoke, copied, finished, tmp_path):
    checkpoints = Checkpoints(copied[1] / "checkpoints", config_hash=stored_spec(copied[1]).hash)
    step, state = checkpoints.latest()
    worse = {name: weight + 1 for name, weight in state["model"].items()}
    checkpoints.save(step + 1, state | {"model": worse})  # newer
    root = tmp_path / "new"
    command = (*smoke, f"init_from={copied[1]}", f"runs_root={root}", "optim.lr=1e-20", "trainer.steps=1")
    assert train_lm(*command) == 0
    run, source = only_run(root), weights(finished[1])
    for name, weight in weights(run, last=True).items():  # a step of 1e-20 changes no number that is not 0
        torch.testing.assert_close(weight, source[name], rtol=0, atol=1e-18)
    assert stored_spec(run).hash != stored_spec(finished[1]).hash
    step = stored_checkpoint(finished[1], stored_spec(finished[1]).hash)[0]
    assert read_json(run / "meta.json")["init_from"] == {"config_hash": stored_spec(finished[1]).hash, "step": step}

    export_run(run, tmp_path / "exported")  # has the name of that run, and not its folder on this machine
    assert str(copied[1].parent) not in (tmp_path / "exported/config.json").read_text()
    assert fourierformer.from_pretrained(tmp_path / "exported", "cpu").spec.init_from == finished[1].name


def test_a_resumed_run_does_not_read_it_again(smoke, copied, tmp_path):
    shutil.copytree(copied[1], tmp_path / "source")
    command = (*smoke, f"init_from={tmp_path / 'source'}", f"run_dir={tmp_path / 'run'}", "trainer.save_every=1")
    assert train_lm(*command) == 0
    expected, origin = weights(tmp_path / "run", last=True), read_json(tmp_path / "run/meta.json")["init_from"]
    last, *_ = sorted((tmp_path / "run/checkpoints").glob("step_*"), reverse=True)
    shutil.rmtree(last)
    (tmp_path / "run/summary.json").unlink()
    shutil.rmtree(tmp_path / "source")  # as on another machine, where the run goes on
    assert train_lm(*command) == 0
    for name, weight in weights(tmp_path / "run", last=True).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=0)
    assert read_json(tmp_path / "run/meta.json")["init_from"] == origin


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("init_from=/no/such/run", "/no/such/run is not a run directory: there is no such directory"),
        ("attention=gaussian", "attention.name: softmax -> gaussian; attention.normalize_keys: - -> False): choose"),
        ("model.heads=1", "mean something else in this model (model.heads: 4 -> 1): choose"),
        ("model.position=learned", "mean something else in this model (model.position: "),
        ("data.vocabulary_size=20", "it was trained with another vocabulary or other classes, "),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(smoke, finished, tmp_path, capfd, change, message):
    command = (*smoke, f"init_from={finished[1]}", f"run_dir={tmp_path / 'run'}", f"data.cache={tmp_path}", change)
    assert train_lm(*command) == 2
    error = capfd.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_runs_of_earlier_versions_have_no_such_key_and_the_same_hash(copied):
    run = copied[1]
    text = (run / "config.yaml").read_text()
    assert "init_from: null\n" in text
    (run / "config.yaml").write_text(text.replace("init_from: null\n", ""))
    assert stored_spec(run).init_from is None
    assert stored_spec(run).hash == json.loads((run / "meta.json").read_text())["config_hash"]
