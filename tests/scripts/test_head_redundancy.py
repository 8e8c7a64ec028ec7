"""scripts/head_redundancy.py on runs of a few steps."""

import json
import random
import sys

import numpy as np
import pytest
import torch

from fourierformer.analysis.heads import measure_heads, saved
from fourierformer.errors import SetupError
from fourierformer.runs.parts import open_run
from tests.helpers.command_line import IMAGES, MODEL, REPOSITORY, only_run, train_lm, train_vit

sys.path.insert(0, str(REPOSITORY / "scripts"))
import head_redundancy

LENGTH = 8  # of MODEL


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> tuple[str, ...]:
    """A model of two heads, and a text of about 500 tokens per split."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(0)
    for split in ("train", "valid", "test"):
        lines = [" ".join(draw.choices([f"word{number}" for number in range(50)], k=9)) for _ in range(50)]
        (folder / f"wiki.{split}.tokens").write_text("\n".join(lines) + "\n")
    data = ("data=wikitext2", f"data.root={folder}", "data.expect=null", f"data.cache={folder / 'cache'}")
    return (*MODEL, *data, "attention=fourier", "model.heads=2", "model.layers=2")


@pytest.fixture(scope="module")
def language(text, tmp_path_factory):
    root = tmp_path_factory.mktemp("language")
    assert train_lm(*text, f"runs_root={root}") == 0
    return only_run(root)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    assert train_vit(*IMAGES, f"runs_root={root}") == 0
    return only_run(root)


@pytest.fixture
def script(monkeypatch):
    """Runs it in this process; its exit code."""

    def run(*arguments) -> int:
        monkeypatch.setattr(sys, "argv", ["head_redundancy.py", *map(str, arguments)])
        try:
            head_redundancy.main()
        except SystemExit as end:
            return end.code
        return 0

    return run


def test_a_language_run_is_measured_on_the_first_segments(script, language, capsys):
    assert script(language, "--split", "test", "--sequences", "5") == 0
    measured = saved(language)["test"]
    parts, step = open_run(language, "cpu")
    tokens = torch.from_numpy(parts.corpus.splits["test"][: 5 * LENGTH].astype(np.int64)).view(5, LENGTH)
    expected = [sums.means() for sums in measure_heads(parts.model, parts.model.hidden, [tokens])]
    assert measured["layers"] == [pytest.approx(layer, rel=1e-5) for layer in expected]
    assert (measured["step"], measured["sequences"], measured["heads"], measured["length"]) == (step, 5, 2, LENGTH)
    printed = capsys.readouterr().out
    assert f"{measured['layers'][1]['head_distance']:.3f}" in printed
    assert f"{measured['mean']['head_distance']:.3f} ± {measured['sd']['head_distance']:.3f}" in printed
    assert "test split of wikitext2, 5 sequences of 8 tokens, rank of 5" in printed


def test_both_kinds_of_runs_at_once_and_the_numbers_as_a_file(script, language, vision, tmp_path):
    out = tmp_path / "heads.json"
    assert script(language, vision, "--split", "valid", "--json", out) == 0
    text, images = json.loads(out.read_text())
    assert (text["run"], text["split"], images["run"]) == (str(language), "valid", str(vision))
    parts, _ = open_run(language, "cpu")
    assert text["sequences"] == len(parts.corpus.splits["valid"]) // LENGTH  # fewer than 1,000: all of them
    assert images["sequences"] == 360  # all validation images
    assert images["ranked_sequences"] <= 16
    for run, measured in ((language, text), (vision, images)):
        kept = saved(run)["valid"]
        del kept["origin"]
        assert kept == {key: value for key, value in measured.items() if key not in ("run", "settings", "split")}
        assert 0 < measured["mean"]["head_distance"] < (2 * measured["length"]) ** 0.5


def test_runs_that_differ_in_a_setting_stand_in_one_table(script, text, tmp_path, capsys):
    for rate in ("1e-3", "2e-3"):
        assert train_lm(*text, f"optim.lr={rate}", f"runs_root={tmp_path}") == 0
    capsys.readouterr()
    assert script(tmp_path, "--sequences", "5", "--json", tmp_path / "heads.json") == 0
    below = capsys.readouterr().out.split("how much the heads of a layer differ")[1].splitlines()
    table = [line.split() for line in below if line.strip().startswith("lm_tiny  fourier")]
    assert [line[2] for line in table] == ["lr=0.001", "lr=0.002"]
    measured = {run["settings"]: run["mean"] for run in json.loads((tmp_path / "heads.json").read_text())}
    assert [line[5] for line in table] == [f"{measured[f'fourier {line[2]}']['head_distance']:.2f}" for line in table]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--split", "test"), "has no test split: --split is one of train, valid"),
        (("--sequences", "0"), "--sequences=0: must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(script, vision, capsys, arguments, message):
    assert script(vision, *arguments) == 2
    assert message in capsys.readouterr().err


def test_a_run_with_one_head_is_refused(script, text, tmp_path, capsys):
    assert train_lm(*text, "model.heads=1", f"runs_root={tmp_path}") == 0
    assert script(only_run(tmp_path)) == 2
    assert "a single head per layer cannot be compared" in capsys.readouterr().err
    assert saved(only_run(tmp_path)) == {}


def test_a_run_that_cannot_be_measured_does_not_keep_the_others_from_it(script, text, vision, tmp_path, capsys):
    assert train_lm(*text, "model.heads=1", f"runs_root={tmp_path}") == 0
    (vision / "heads.json").unlink(missing_ok=True)
    assert script(only_run(tmp_path), vision, "--sequences", "8") == 2
    assert list(saved(vision)) == ["valid"]
    said = capsys.readouterr()
    assert "a single head per layer cannot be compared" in said.err
    assert "left out: " in said.out


def test_no_run_is_refused(script, tmp_path, capsys):
    assert script(tmp_path) == 2
    assert "error: " in capsys.readouterr().err


def test_what_a_glob_names_beside_runs_is_left_out(tmp_path):
    """Of runs/builtin/*: the report, the folder of its charts, and a run that was moved aside."""
    for name in ("lm_tiny-softmax-s1-12345678", "lm_tiny-softmax-s1-12345678.old-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("")
    (tmp_path / "figures").mkdir()
    (tmp_path / "report.html").write_text("")
    assert [run.name for run in head_redundancy.runs_among(sorted(tmp_path.iterdir()))] == [
        "lm_tiny-softmax-s1-12345678"
    ]
    with pytest.raises(SetupError, match="no runs among"):
        head_redundancy.runs_among([tmp_path / "report.html"])
