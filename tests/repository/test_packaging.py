"""pyproject.toml, constraints.txt, environment.yml, Makefile and .gitignore say the same."""

import os
import re
import subprocess
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import fourierformer
from fourierformer.__main__ import SCRIPTS, help_text, main
from tests.helpers.command_line import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line.strip()]
EVERYTHING = PROJECT["dependencies"] + [r for extra in PROJECT["optional-dependencies"].values() for r in extra]


@pytest.mark.parametrize("line", EVERYTHING)
def test_every_dependency_is_pinned_within_its_range(line):
    requirement = Requirement(line)
    if requirement.name == PROJECT["name"]:
        return  # an extra that includes another one
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
    assert pins, f"{requirement.name} has no pin: make constraints"
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert requirement.specifier.contains(exact.version, prereleases=True)


def test_constraints_name_no_place():
    text = (REPOSITORY / "constraints.txt").read_text()
    assert "://" not in text
    assert " @ " not in text
    assert "--" not in text


def test_the_conda_file_is_thin():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert pip == {"pip": ["-c constraints.txt", "-e .[dev]"]}
    (python,) = [re.fullmatch(r"python=(\d+\.\d+)", line) for line in conda if line.startswith("python")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python[1])
    assert {"pip", "make"} < set(conda)


def test_lock_files_with_hosts_stay_out():
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    names = ["uv.lock", "pylock.toml", "pylock.dev.toml", "runs/x", "data/x", ".venv/x"]
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=REPOSITORY, capture_output=True, text=True)
    assert ignored.stdout.split() == names


def test_make_help_lists_every_target():
    text = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", text, flags=re.M))
    assert {"setup", "train", "test", "lint", "doctor", "help"} <= targets
    phony = re.search(r"^\.PHONY:(.*)$", text, flags=re.M)[1].split()
    assert set(phony) == targets
    listed = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^ *make ([a-z-]+)", listed, flags=re.M)) == targets


def test_make_setup_adds_extras_to_an_environment_that_is_there():
    command = ["make", "-n", "-o", ".venv/.ok", "setup"]
    options = {"cwd": REPOSITORY, "capture_output": True, "text": True, "check": True}
    # without the flags of a `make test EXTRAS=...` around this test
    options["env"] = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    added = subprocess.run([*command, "EXTRAS=dev,docs"], **options)
    assert re.search(r"pip install .*-c constraints.txt -e '\.\[dev,docs\]'", added.stdout)
    assert "pip install" not in subprocess.run(command, **options).stdout


def evidence(tmp_path, program: str, *settings: str) -> subprocess.CompletedProcess:
    """`make evidence-gpu` with a shell program in place of Python."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "-o", "setup", "evidence-gpu", f"PY={python}", *settings]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


def test_evidence_runs_table_1_on_the_given_data(tmp_path):
    done = evidence(tmp_path, 'echo "$@"', "DATA=/some/where", "ARGS=trainer.save_every=50")
    training, last = done.stdout.splitlines()
    script, *overrides = training.split()
    assert (script, last) == ("train_lm.py", "all is done")
    assert overrides == [
        "sweep=table1",
        "scale=wikitext2",
        "seed=1,2,3",
        'data.root="/some/where"',
        "trainer.save_every=50",
    ]


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [("sleep 60", 0, "the time is up: the same command continues"), ("exit 3", 2, "")],
)
def test_a_piece_of_evidence_ends_with_the_time_or_the_error(tmp_path, program, code, words):
    done = evidence(tmp_path, program, "PIECE=0.01")
    assert (done.returncode, done.stdout.strip()) == (code, words)


def test_every_command_is_a_script_of_one_line():
    """`fourierformer --help` lists them by the first lines of their docstrings."""
    listed = re.findall(r"^  (\w+)\b.* {2,}(\S.*)$", help_text(), flags=re.M)
    assert [name for name, _ in listed] == ["train", *SCRIPTS]
    for name, line in listed:
        assert len(line.split()) > 3, f"{name}: {line}"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["reprot"], "error: no command 'reprot' (did you mean 'report'?)"),
        (
            ["train", "lm", "-sc", "install=bash"],
            "error: this command has no completion by the tab key; train_lm.py in a copy of the repository has",
        ),
        (["train"], "error: train what? fourierformer train lm | vit [overrides]"),
    ],
)
def test_a_wrong_command_is_one_line(command, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fourierformer", *command])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == message + "\n"


def test_version_and_date_are_the_same_everywhere():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    newest = re.search(
        r"^## (\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})$", (REPOSITORY / "CHANGELOG.md").read_text(), flags=re.M
    )
    assert newest.groups() == (fourierformer.__version__, str(citation["date-released"]))
    assert citation["version"] == fourierformer.__version__


def test_every_python_that_is_allowed_is_tested():
    allowed = [f"3.{minor}" for minor in range(30) if SpecifierSet(PROJECT["requires-python"]).contains(f"3.{minor}")]
    jobs = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())["jobs"]
    for job in ("test", "release"):
        assert jobs[job]["strategy"]["matrix"]["python"] == allowed
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"^PYTHONS \?= (.*)$", makefile, flags=re.M)[1].split() == [f"python{it}" for it in allowed]
    named = [line for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert named == [f"Programming Language :: Python :: {it}" for it in allowed]
