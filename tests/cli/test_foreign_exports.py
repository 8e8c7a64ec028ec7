"""Exported models that somebody changed end in one line, before anything is allocated or executed."""

import json
import math
import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fourierformer
from fourierformer.errors import SetupError
from fourierformer.runs import trained
from fourierformer.runs.trained import export_run
from tests.helpers.command_line import IMAGES, only_run, train_vit


@pytest.fixture(scope="module")
def exports(finished, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    assert train_vit(*IMAGES, f"runs_root={folder / 'runs'}") == 0
    export_run(finished[1], folder / "text")
    export_run(only_run(folder / "runs"), folder / "images")
    return {name: folder / name for name in ("text", "images")}


@pytest.fixture
def copy(exports, tmp_path):
    """Copies of the exports, to be changed."""
    for name, folder in exports.items():
        shutil.copytree(folder, tmp_path / name)
    return tmp_path


def refusal(folder: Path, monkeypatch) -> str:
    """The error of from_pretrained, which comes before the model is built and its weights are read."""

    def built(*arguments):
        raise AssertionError("the model was built")

    monkeypatch.setattr(trained, "_assembled", built)
    monkeypatch.setattr(trained, "load_file", built)
    with pytest.raises(SetupError) as error:
        fourierformer.from_pretrained(folder, "cpu")
    assert "\n" not in str(error.value)
    return str(error.value)


def change(path: Path, key: str, value: object) -> None:
    """Set a dotted key of a JSON file; without a key the whole content."""
    content = json.loads(path.read_text())
    *outer, last = key.split(".")
    section = content
    for name in outer:
        section = section[name]
    section[last] = value
    path.write_text(json.dumps(content))


WRONG = [None, [], [1], {}, 7, -1, "text", math.nan, True, 10**12, [[]], [{"a": 1}]]


@pytest.mark.parametrize("name", ["text", "images"])
@pytest.mark.parametrize(
    "key",
    ["run", "run.task", "run.model", "run.attention", "run.attention.name", "run.data", "run.optim", "run.trainer"],
)
def test_a_config_of_another_form_is_one_line(name, key, copy, monkeypatch):
    original = (copy / name / "config.json").read_text()
    for value in WRONG:
        if key == "run.attention.name" and value is None:
            continue
        (copy / name / "config.json").write_text(original)
        change(copy / name / "config.json", key, value)
        assert refusal(copy / name, monkeypatch)


@pytest.mark.parametrize("value", [None, [], "7", 1.5, math.nan, True])
def test_a_step_that_is_no_number_is_one_line(value, copy, monkeypatch):
    change(copy / "text" / "config.json", "step", value)
    assert "no run or step in config.json" in refusal(copy / "text", monkeypatch)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        *(("unit", value, "expected 'word' or 'byte' or 'pixel'") for value in ("letters", None, 7, [])),
        *(("vocabulary", value, "expected a whole number") for value in (None, "many", 1.5, math.nan, [])),
        *(("vocabulary", value, "must be at least 1") for value in (-5, 0, 10**12)),
        ("vocabulary", 7, r"it has \d+ words, but a vocabulary of 7"),
        *(("words", value, "expected a list of text") for value in ("many", [1], 7, [None])),
        ("words", ["a"], "it has 1 words, but a vocabulary of"),
        *(("sequence", value, "expected a whole number or null") for value in ("many", [])),
        ("source", 7, "expected"),
    ],
)
def test_facts_of_another_form_are_one_line(key, value, reason, copy, monkeypatch):
    change(copy / "text" / "data.json", key, value)
    assert re.search(reason, refusal(copy / "text", monkeypatch))


@pytest.mark.parametrize(
    "content", ["{}", '{"classes": []}', '{"classes": null}', '{"classes": [1]}', '{"classes": 7}']
)
def test_missing_facts_are_one_line(content, copy, monkeypatch):
    for name in ("text", "images"):
        (copy / name / "data.json").write_text(content)
        assert "data.json: " in refusal(copy / name, monkeypatch)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *(("text", f"run.model.{key}", value) for key in ("dim", "inner", "heads") for value in (32, 2**20, 2**24)),
        ("text", "run.model.length", 2**24),
        *(("text", "run.model.layers", value) for value in (2, 1000)),
        *(("images", f"run.model.{key}", value) for key in ("dim", "image_size", "depth") for value in (64, 2**24)),
    ],
)
def test_sizes_are_compared_with_the_file_before_anything_is_allocated(name, key, value, copy, monkeypatch):
    change(copy / name / "config.json", key, value)
    before = torch.empty

    def small(*sizes, **options):
        tensor = before(*sizes, **options)
        assert tensor.is_meta or tensor.numel() < 2**20
        return tensor

    monkeypatch.setattr(torch, "empty", small)
    message = refusal(copy / name, monkeypatch)
    assert key.removeprefix("run.") in message or "its weights do not fit its model (size mismatch for" in message


def test_a_vocabulary_with_as_many_words_is_compared_with_the_file(copy, monkeypatch):
    change(copy / "text" / "data.json", "words", [f"w{number}" for number in range(100_000)])
    change(copy / "text" / "data.json", "vocabulary", 100_000)
    assert "size mismatch for" in refusal(copy / "text", monkeypatch)


def test_missing_and_surplus_weights_are_named(copy, monkeypatch):
    weights = load_file(copy / "text" / "model.safetensors")
    name = min(weights)
    save_file({key: tensor for key, tensor in weights.items() if key != name}, copy / "text" / "model.safetensors")
    assert f"size mismatch for {name}" in refusal(copy / "text", monkeypatch)
    save_file(weights | {"surplus": torch.zeros(3)}, copy / "text" / "model.safetensors")
    assert "size mismatch for surplus: None by its config.json, (3,) in" in refusal(copy / "text", monkeypatch)


class Planted:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "pickle", "cut"])
def test_a_weights_file_of_another_kind_is_one_line(kind, copy, monkeypatch):
    path, mark = copy / "text" / "model.safetensors", copy / "mark"
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(pickle.dumps(Planted(mark)) if kind == "pickle" else content[: len(content) // 2])
    assert "model.safetensors cannot be read" in refusal(copy / "text", monkeypatch)
    assert not mark.exists()


def test_transformers_refuses_a_run_of_another_form(copy):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import fourierformer.integrations.hugging_face as integration

    for value in (None, [1], "text", {}):
        with pytest.raises(SetupError, match=r"config\.json holds no run of a language model"):
            integration.FourierFormerForCausalLM(integration.FourierFormerConfig(run=value))
    assert transformers
