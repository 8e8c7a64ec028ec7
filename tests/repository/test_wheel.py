"""The source archive is whole, and a wheel made from it works in an environment of its own."""

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.helpers.command_line import MODEL, REPOSITORY, only_run, train_lm

pytestmark = pytest.mark.full("builds a wheel, installs it and trains with it")
OVERRIDES = (*MODEL, "data.vocabulary_size=50")


def run(*command: object, cwd: Path, **environment: str) -> str:
    """The standard output of a command, which has to succeed."""
    words = [str(word) for word in command]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=cwd, env=kept | environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def repository_files() -> list[str]:
    """What belongs to the repository."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: nothing lists the files that belong to it")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = run(*listed, cwd=REPOSITORY).splitlines()
    return [name for name in names if (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The source archive, unpacked; built from a copy, since building leaves files behind."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("archive")
    for name in repository_files():
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "copy" / name).write_bytes((REPOSITORY / name).read_bytes())
    build = f"import setuptools.build_meta as backend; backend.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=folder / "copy")
    (archive,) = folder.glob("fourierformer-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def installed(unpacked, tmp_path_factory) -> Path:
    """The folder of the programs of an environment with nothing of ours but the wheel; no package is downloaded."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check", "-q")
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--no-build-isolation", *offline, "-w", folder, unpacked, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    programs = folder / "venv" / "bin"
    run(*pip, "--python", programs / "python", "install", *offline, wheel, cwd=folder)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # torch and the other dependencies; the editable installation there has files of its own and is not found this way
    (packages / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages")) + "\n"
    )
    return programs


def test_the_source_archive_has_every_file_of_the_repository(unpacked):
    missing = [name for name in repository_files() if not (unpacked / name).is_file()]
    assert not missing, "name them in MANIFEST.in"


def test_the_source_archive_runs_its_tests(unpacked):
    """All of them are found there; some that read files from every corner are run."""
    pytest_of_it = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    found = run(*pytest_of_it, "--collect-only", cwd=unpacked, PYTHONPATH=str(unpacked))
    assert re.search(r"^\d{4,} tests collected", found, flags=re.M)
    chosen = (
        "tests/repository/test_packaging.py",
        "tests/repository/test_messages.py",
        "tests/results/test_paper_table.py",
    )
    assert " passed" in run(*pytest_of_it, *chosen, cwd=unpacked, PYTHONPATH=str(unpacked))


def test_the_wheel_trains_the_same_run_and_shows_it(installed, tmp_path):
    command = installed / "fourierformer"
    where = run(installed / "python", "-c", "import fourierformer; print(fourierformer.__file__)", cwd=tmp_path)
    assert where.startswith(str(installed.parent))
    assert "loading" in run(command, "train", "lm", *OVERRIDES, "runs_root=runs", cwd=tmp_path)
    assert train_lm(*OVERRIDES, f"runs_root={tmp_path / 'repository'}") == 0
    ours, theirs = only_run(tmp_path / "runs"), only_run(tmp_path / "repository")
    assert ours.name == theirs.name  # with the hash of all that is computed
    assert ["fourierformer train lm " in (ours / "meta.json").read_text()] == [True]
    assert (tmp_path / run(command, "report", cwd=tmp_path).strip()).is_file()
    assert "softmax" in run(command, "make_tables", cwd=tmp_path)
    assert "1 completed" in run(command, "sweep_status", cwd=tmp_path)
    assert "wikitext103" in run(command, "prepare_data", "--list", cwd=tmp_path)
    assert "nll" in run(command, "evaluate", ours, cwd=tmp_path)
    assert "augment" in run(command, "train", "vit", "--help", cwd=tmp_path)
