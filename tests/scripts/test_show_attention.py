"""scripts/show_attention.py: pictures of a pattern and of a run of a few steps, and what is refused."""

import re
import shutil
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fourierformer.analysis.maps import MeanMaps
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.runs.trained import load_run
from tests.helpers.command_line import IMAGES, MODEL, REPOSITORY, only_run, train_lm, train_vit
from tests.helpers.synthetic_runs import write_run

sys.path.insert(0, str(REPOSITORY / "scripts"))
import show_attention


@pytest.fixture
def script(monkeypatch):
    """Runs it in this process; its exit code."""

    def run(*arguments) -> int:
        monkeypatch.setattr(sys, "argv", ["show_attention.py", *map(str, arguments)])
        try:
            show_attention.main()
        except SystemExit as end:
            return end.code
        return 0

    return run


def test_a_pattern_becomes_two_files(script, tmp_path):
    assert script("image_2d", "tile=2", "memory=1", "--grid", "4x6", "--out", tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"attention_image_2d.svg", "attention_image_2d.png"}


@pytest.mark.full("trains a model for its maps")
def test_a_run_shows_maps_and_maps_by_offset(script, tmp_path, capsys):
    assert train_vit(*IMAGES, "attention=axial", f"runs_root={tmp_path}") == 0
    run = only_run(tmp_path)
    assert script(run, "--sequences", "4", "--layers", "0") == 0
    names = {f"attention_{what}.{kind}" for what in ("maps", "by_offset") for kind in ("svg", "png")}
    assert {path.name for path in (run / "pictures").iterdir()} == names
    other = shutil.copytree(run, tmp_path / "elsewhere" / run.name)
    assert script(run, other, "--sequences", "1", "--out", tmp_path / "both") == 0
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"attention_compared.svg", "attention_compared.png"}
    assert script(run, run, "--out", tmp_path / "both") == 2
    assert "one run is named twice" in capsys.readouterr().err
    assert script(run, "--layers", "9") == 2
    assert re.search("--layers 9: .* has layers 0 to ", capsys.readouterr().err)


def test_maps_of_a_text_are_arrays_that_hold_the_weights_of_each_head(script, tmp_path, capsys):
    assert train_lm(*MODEL, "model.layers=2", f"run_dir={tmp_path / 'run'}") == 0
    assert script(tmp_path / "run", "--text", "the function returns", "--out", tmp_path) == 0
    arrays = np.load(tmp_path / "text_maps.npz")
    assert list(arrays["tokens"]) == ["the", "function", "returns"]
    assert arrays["maps"].shape == (2, 4, 3, 3)  # layers, heads, queries, keys
    trained, inputs = load_run(tmp_path / "run", "cpu"), []
    second = trained.model.layers[1].attention
    second.register_forward_pre_hook(lambda layer, arguments: inputs.append(arguments[0][0].detach()))
    trained.model.hidden(torch.tensor([trained.encode("the function returns")]))
    queries, keys, _ = (inputs[0] @ second.qkv.weight.detach().T).split(16, dim=-1)
    for head in range(4):
        mine = slice(4 * head, 4 * head + 4)
        for i in range(3):
            weights = (keys[: i + 1, mine] @ queries[i, mine] / 4**0.5).exp()
            expected = torch.cat([weights / weights.sum(), torch.zeros(2 - i)])
            np.testing.assert_allclose(arrays["maps"][1, head, i], expected, rtol=1e-5)
    assert script(tmp_path / "run", "--grid", "8x8") == 2
    assert re.search("--grid is of a pattern, and .*run is a run: leave it out", capsys.readouterr().err)
    assert script(tmp_path / "run", "--text", "the " * 9) == 2
    assert "the text has 9 tokens, the model reads 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["band", "windw=3"], "no knob 'windw' \\(did you mean 'window'"),
        (["band", "window"], "write knob=value, as in window=6"),
        (["band", "window=[1"], "cannot read 'window=.1': write knob=value, as in window=6"),
        (["axial", "--grid", "100x100"], "rows . columns of --grid=10000: must be at least 1 and less than 2,049"),
        (["runs/one", "runs/two", "--text", "the"], "--text shows one model: runs/one, without runs/two"),
        (["axial", "--grid", "8"], "--grid 8: write rows and columns, as in 8x8"),
        (["axial", "--grid", "8x" + "9" * 5000], "write rows and columns, as in 8x8"),
        (["runs/nope"], "runs/nope is not a run directory: there is no such directory"),
        (["band", "--layers", "0"], "--layers is of runs, and band is an attention: leave it out"),
        (["band", "--tokens", "9", "--grid", "4x4"], "--tokens is rows . columns of --grid here: leave it out"),
        (["axial", "--tokens", "16"], "--tokens is rows . columns of --grid here"),
        (["runs/one", "--text", "the", "--layers", "0"], "--layers is not read with --text: leave it out"),
        (["band", "--sequences", "9"], "--sequences is of runs, and band is an attention"),
        (["band", "--tokens", "99999"], "--tokens=99999: must be at least 1 and less than 2,049"),
    ],
)
def test_mistakes_end_in_one_line(words, message, script, capsys):
    assert script(*words) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(("count", "shown"), [(1, [0]), (2, [0, 1]), (5, [0, 2, 4]), (12, [0, 5, 11])])
def test_maps_are_of_the_named_split_and_of_the_first_the_middle_and_the_last_layer(monkeypatch, count, shown):
    def mean_maps(run, split, sequences):
        return MeanMaps(torch.rand(count, 2, 5, 5), split, sequences, 100, Geometry(8, 2, 5, causal=True))

    monkeypatch.setattr("fourierformer.analysis.maps.mean_maps", mean_maps)
    options = Namespace(split="train", sequences=7, layers=None)
    (mean,), layers = show_attention.maps_of([Path("run")], options)
    assert (mean.split, mean.sequences, layers) == ("train", 7, shown)


def test_runs_of_the_same_name_are_told_apart_by_their_paths():
    runs = [Path("before/lm-s1"), Path("after/lm-s1")]
    assert show_attention.labels_of(runs, ["softmax", "fourier"]) == ["softmax", "fourier"]
    assert show_attention.labels_of(runs, ["fourier", "fourier"]) == ["before/lm-s1", "after/lm-s1"]
    with pytest.raises(SetupError, match="named twice"):
        show_attention.labels_of([runs[0], runs[0]], ["fourier", "fourier"])


def test_maps_of_other_sequences_are_not_compared(tmp_path):
    runs = [write_run(tmp_path, "softmax", 1), write_run(tmp_path, "fourier", 1)]
    maps = torch.rand(1, 2, 5, 5)
    mean = MeanMaps(maps, "test", 5, 100, Geometry(8, 2, 5, causal=True))
    show_attention.check_comparable(runs, [mean, mean])
    for other in (replace(mean, split="valid"), replace(mean, maps=torch.rand(1, 2, 9, 9))):
        with pytest.raises(SetupError, match="compare runs of the same data and length"):
            show_attention.check_comparable(runs, [mean, other])
