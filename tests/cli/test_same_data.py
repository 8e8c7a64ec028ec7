"""A run goes on with the data that it began with, or not at all; where its folder is does not matter."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from fourierformer.training.state_file import write_state
from tests.helpers.command_line import IMAGES, REPOSITORY, only_run, rows, status, train_lm, train_vit


def moved(smoke: tuple[str, ...], root: Path, cache: Path) -> list[str]:
    """The same overrides with the data in another folder."""
    kept = [override for override in smoke if not override.startswith(("data.root=", "data.cache="))]
    return [*kept, f"data.root={root}", f"data.cache={cache}"]


@pytest.fixture(scope="module")
def text_folder(smoke) -> Path:
    return Path(next(override for override in smoke if override.startswith("data.root=")).partition("=")[2])


@pytest.fixture
def other_text(text_folder, tmp_path) -> Path:
    """A text of one more word, which no prepared copy knows."""
    folder = tmp_path / "other"
    folder.mkdir()
    for file in text_folder.glob("*.tokens"):
        (folder / file.name).write_text(f"another {file.read_text()}")
    return folder


def interrupt(run: Path) -> None:
    """Makes a finished run one that was killed before its summary."""
    (run / "summary.json").unlink()


def evaluate(run: Path, root: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, REPOSITORY / "scripts" / "evaluate.py", run, "--data-root", root, "--protocol=segment"]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


def test_other_text_is_refused_by_a_finished_and_by_a_killed_run(copied, smoke, other_text, tmp_path, capfd):
    root, run = copied
    fingerprint = json.loads((run / "meta.json").read_text())["data_fingerprint"]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "summary.json"}
    for state in ("finished", "killed"):
        assert train_lm(*moved(smoke, other_text, tmp_path / "cache"), f"runs_root={root}") == 2, state
        error = capfd.readouterr().err
        assert error.startswith(
            f"error: {run} was trained on other data: its fingerprint is {fingerprint}, the fingerprint of "
        )
        assert f"in {other_text} is " in error
        assert error.count("\n") == 1
        if state == "finished":
            interrupt(run)
    assert {path: path.read_bytes() for path in before} == before


def test_a_text_that_changed_in_its_folder_is_refused(other_text, smoke, tmp_path, capfd):
    """Also where meta.json is lost: every checkpoint has the fingerprint."""
    arguments = [*moved(smoke, other_text, tmp_path / "cache"), f"runs_root={tmp_path / 'runs'}"]
    assert train_lm(*arguments) == 0
    run = only_run(tmp_path / "runs")
    with open(other_text / "wiki.valid.tokens", "a") as file:
        file.write("word1 word2\n")
    assert train_lm(*arguments) == 2
    (run / "meta.json").unlink()
    interrupt(run)
    assert train_lm(*arguments) == 2
    assert capfd.readouterr().err.count("was trained on other data") == 2


def test_an_identical_folder_elsewhere_is_the_same_data(copied, smoke, text_folder, tmp_path, capfd):
    root, run = copied
    shutil.copytree(text_folder, tmp_path / "elsewhere", copy_function=shutil.copyfile)  # with times of its own
    arguments = [*moved(smoke, tmp_path / "elsewhere", tmp_path / "cache"), f"runs_root={root}"]
    assert train_lm(*arguments) == 0
    assert "already done" in capfd.readouterr().out
    interrupt(run)
    assert train_lm(*arguments) == 0
    assert status(run)["state"] == "completed"


def test_a_run_of_an_earlier_version_is_found_and_resumes(copied, smoke, finished, other_text, tmp_path, capfd):
    """Without a fingerprint in meta.json and in its checkpoints. It says so once."""
    root, run = copied
    meta = json.loads((run / "meta.json").read_text())
    del meta["data_fingerprint"], meta["checksum"]
    (run / "meta.json").write_text(json.dumps(meta))
    for folder in (run / "checkpoints").iterdir():
        state = torch.load(folder / "state.pt", weights_only=True)
        state.pop("data_fingerprint")
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        manifest["files"] = {"state.pt": write_state(folder / "state.pt", state)}
        (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert "already done" in capfd.readouterr().out
    interrupt(run)
    (run / "evaluation.json").unlink()
    assert train_lm(*moved(smoke, other_text, tmp_path / "cache"), f"runs_root={root}") == 2  # another vocabulary
    assert "the weights of its checkpoint do not fit the model (RuntimeError: size mismatch" in capfd.readouterr().err
    assert train_lm(*smoke, f"runs_root={root}") == 0
    assert rows(run) == rows(finished[1])
    assert "data_fingerprint" in json.loads((run / "meta.json").read_text())


@pytest.mark.full("a process for each of two evaluations")
def test_an_evaluation_on_other_text_is_refused(finished, other_text, text_folder):
    _, run = finished
    refused = evaluate(run, other_text)
    assert refused.returncode == 2
    assert "was trained on other data" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert evaluate(run, text_folder).returncode == 0


@pytest.mark.full("a training of images")
def test_other_images_are_refused_at_once_and_at_a_resume(tmp_path, capfd):
    folders = [_images(tmp_path / name, shade) for name, shade in (("one", 10), ("two", 200))]
    data = ("data=cifar10", "data.expect=null", "data.hub=null", f"runs_root={tmp_path / 'runs'}")
    first, second = ([*IMAGES, *data, f"data.root={folder}", f"data.cache={tmp_path}"] for folder in folders)
    assert train_vit(*first) == 0
    run = only_run(tmp_path / "runs")
    assert train_vit(*second) == 2
    interrupt(run)
    shutil.rmtree(folders[0])
    folders[1].rename(folders[0])
    assert train_vit(*first) == 2
    error = capfd.readouterr().err
    assert error.count("error: ") == error.count("was trained on other data") == error.count("\n") == 2


def _images(root: Path, shade: int) -> Path:
    for split, count in (("train", 8), ("val", 4)):
        for name in ("a", "b"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (32, 32), (shade, number, 0)).save(folder / f"{number}.png")
    return root
