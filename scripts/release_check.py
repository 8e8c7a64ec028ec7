"""Build wheel and source archive of the last commit, and train with the wheel in fresh environments, without extras.

python scripts/release_check.py python3.11 python3.12 /opt/python3.13/bin/python3.13

For each Python, pip installs what pyproject.toml requires into a new environment, about 6 GB with PyTorch's CUDA build,
which is deleted afterwards. PIP_CONSTRAINT=FILE, a variable of pip, chooses other versions. The archives stay in dist/.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fourierformer.errors import SetupError, UserError
from fourierformer.printing import echo
from fourierformer.provenance import REPOSITORY
from fourierformer.runs.console_io import Parser, exit_on_user_error

FACTS = """import fourierformer, hydra, platform, sys, torch
assert fourierformer.__file__.startswith(sys.prefix), fourierformer.__file__
print(f"Python {platform.python_version()}, torch {torch.__version__}, hydra-core {hydra.__version__}")"""


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="a program, such as python3.12")
    pythons = parser.parse_args().pythons
    with exit_on_user_error():
        missing = [python for python in pythons if not starts(python)]
        if len(missing) == len(pythons):
            raise SetupError(f"none of {', '.join(pythons)} starts here: python scripts/release_check.py PYTHON")
        with tempfile.TemporaryDirectory() as folder:
            wheel = build(Path(folder), Path("dist").absolute())
        for python in [python for python in pythons if python not in missing]:
            with tempfile.TemporaryDirectory() as folder:
                # absolute, since it runs in another folder; not resolved: that of an environment is a link
                program = str(Path(shutil.which(python) or python).absolute())
                echo(f"{python}: {train_with(wheel, program, Path(folder))}", flush=True)
        if missing:
            echo(f"not tried, because they do not start here: {', '.join(missing)}")


def starts(python: str) -> bool:
    """Whether this program starts; pyenv has programs of the same names that do not."""
    try:
        return subprocess.run([python, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def build(folder: Path, archives: Path) -> Path:
    """The wheel, built from the source archive, which is built from the files of the last commit."""
    run("git", "clone", "-q", REPOSITORY, folder / "source", cwd=folder)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "build", cwd=folder)
    printed = run(python, "-m", "build", "--outdir", archives, folder / "source", cwd=folder)
    *_, source, wheel = re.findall(r"fourierformer-\S+(?:\.tar\.gz|\.whl)", printed)
    echo(f"built {archives / source} and {wheel}", flush=True)
    return archives / wheel


def train_with(wheel: Path, python: str, folder: Path) -> str:
    """Install the wheel into an environment in `folder`, and run its command. Returns versions and size."""
    environment = folder / "venv"
    run(python, "-m", "venv", environment, cwd=folder)
    python, command = environment / "bin" / "python", environment / "bin" / "fourierformer"
    run(python, "-m", "pip", "install", "-q", wheel, cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)
    version = run(command, "--version", cwd=folder).strip()
    facts = run(python, "-c", FACTS, cwd=folder).strip()
    run(command, "train", "lm", "debug=smoke", cwd=folder)
    run(command, "train", "vit", "debug=smoke_vit", cwd=folder)
    run(command, "make_tables", cwd=folder)
    size = sum(path.lstat().st_size for path in environment.rglob("*"))
    return f"{version} installs, trains and makes its table; {facts}; the environment has {size / 1e9:.1f} GB"


def run(*command: object, cwd: Path) -> str:
    """The standard output of a command. UserError with its last lines where it fails."""
    words = [str(word) for word in command]
    others = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # no other copy of the package
    done = subprocess.run(words, cwd=cwd, env=others, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise UserError(f"{' '.join(words)} ended with {done.returncode}:\n{last}")
    return done.stdout


if __name__ == "__main__":
    main()
