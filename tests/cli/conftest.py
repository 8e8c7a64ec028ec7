"""A run of a fraction of a second: a text of a few thousand words, prepared once."""

import random
import shutil

import pytest
import torch

from tests.helpers.command_line import MODEL, only_run, train_lm


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """As the processes that `start` makes: results are compared bit by bit, and tests share the machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small_text(tmp_path_factory) -> tuple[str, ...]:
    """Overrides that choose a small text."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    words = [f"word{number}" for number in range(50)]
    for split, lines in {"train": 500, "valid": 50, "test": 50}.items():
        text = "\n".join(" ".join(draw.choices(words, k=9)) for _ in range(lines))
        (folder / f"wiki.{split}.tokens").write_text(text + "\n")
    return ("data=wikitext2", f"data.root={folder}", "data.expect=null", f"data.cache={folder / 'cache'}")


@pytest.fixture(scope="session")
def smoke(small_text) -> tuple[str, ...]:
    """Overrides of a whole run: train, evaluate, save, measure, report."""
    return (*MODEL, *small_text)


@pytest.fixture(scope="module")
def finished(smoke, tmp_path_factory):
    """A finished run, shared: (its runs_root, its directory)."""
    root = tmp_path_factory.mktemp("finished")
    assert train_lm(*smoke, f"runs_root={root}") == 0
    return root, only_run(root)


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run that a test may change: (its runs_root, its directory)."""
    root, run = finished
    shutil.copytree(root, tmp_path / "runs")
    return tmp_path / "runs", tmp_path / "runs" / run.relative_to(root)
