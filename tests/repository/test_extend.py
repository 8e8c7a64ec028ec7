"""docs/extend.md, done: its files and commands, in a copy of the repository; and the script that writes such files."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fourierformer.errors import SetupError
from tests.helpers.command_line import REPOSITORY

GUIDE = (REPOSITORY / "docs/extend.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", GUIDE, flags=re.S | re.M)
FILES = {path: text for _, path, text in BLOCKS if path}
COMMANDS = [line for language, _, text in BLOCKS if language == "bash" for line in text.splitlines()]


def load_script():
    spec = importlib.util.spec_from_file_location("new_attention", REPOSITORY / "scripts/new_attention.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return load_script()


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """What git knows of this repository, and no more."""
    folder = tmp_path_factory.mktemp("repository")
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():  # not one whose removal is not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)
    return folder


def run(command: str, copy: Path) -> str:
    """What it prints, where `python` is this one and the package that of the copy."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"PATH": f"{Path(sys.executable).parent}:{environment['PATH']}", "PYTHONPATH": str(copy)}
    environment |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    done = subprocess.run(command, shell=True, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.full("contract tests and training in a copy of the repository")
@pytest.mark.timeout(900)
def test_the_steps_of_the_guide_work(copy):
    assert len(COMMANDS) == 5
    for path, text in FILES.items():
        assert not (copy / path).exists()
        (copy / path).write_text(text, encoding="utf-8")
    tests, recall, training, table, generated = COMMANDS
    assert int(re.search(r"(\d+) passed", run(tests, copy))[1]) > 40
    run(recall, copy)
    (summary,) = (copy / "runs/recall").rglob("summary.json")
    assert json.loads(summary.read_text())["results"]["test"]["1x"]["sequences"] == 512
    run(training, copy)
    finished = [path.parent.name for path in (copy / "runs/smoke").rglob("summary.json")]
    assert sorted(name.split("-")[1] for name in finished) == ["mine", "softmax"]
    assert re.search(r"\bmine\b", run(table, copy))
    run(generated, copy)
    pages = [copy / "README.md", *(copy / "docs").glob("*.md")]
    rows = [line for page in pages for line in page.read_text().splitlines() if line.startswith("| `mine` |")]
    assert len(rows) == 1
    assert "a Cauchy kernel of query and key" in rows[0]


@pytest.mark.full("contract tests and training in a copy of the repository")
@pytest.mark.timeout(900)
def test_what_the_script_writes_passes_its_tests(copy):
    written = run("python scripts/new_attention.py two_words", copy).splitlines()
    assert all((copy / path).is_file() for path in written[:3])
    assert "class TwoWords(Attention)" in (copy / written[0]).read_text()
    assert int(re.search(r"(\d+) passed", run("python -m pytest -q tests/attention -k two_words", copy))[1]) > 40
    run(f"python -m ruff check {written[0]} {written[2]}", copy)
    run(f"python -m ruff format --check {written[0]} {written[2]}", copy)


def test_the_guide_shows_what_the_script_writes(script):
    assert script.files("mine") == FILES


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("softmax", "attention 'softmax' exists already"),
        ("recurrence", r"fourierformer/attention/mechanisms/recurrence\.py exists already"),
        ("My-Kernel", "lower-case letters, digits and _"),
        ("../escape", "lower-case letters"),
        ("", "lower-case letters"),
        ("class", "cannot name a file of Python"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused_in_one_line(script, name, message, tmp_path):
    for path in script.files("recurrence"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "fourierformer/attention/mechanisms/recurrence.py").write_text("")
    with pytest.raises(SetupError, match=message) as error:
        script.write(name, tmp_path)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["recurrence.py"]


def test_the_command_ends_with_exit_code_2_and_writes_nothing(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["new_attention.py", "softmax"])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "exists already" in line
