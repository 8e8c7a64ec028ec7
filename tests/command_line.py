"""Running train_lm.py in tests: in this process where an exit code and the output are enough (a start costs seconds),
as a real process where signals, kills or another working directory matter."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra

from fourierformer.launch import launch
from fourierformer.training.signals import SIGNALS

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"
# A model so small that starting it is what takes time.
MODEL = ("debug=smoke", "attention=softmax", "model.layers=1", "model.dim=16", "model.inner=16", "model.length=8")


def train_lm(*arguments: str) -> int:
    """`python train_lm.py ...` in this process; its exit code. Output goes to stdout and stderr as usual."""
    from fourierformer.run import main

    GlobalHydra.instance().clear()
    before, handlers = sys.argv, {number: signal.getsignal(number) for number in SIGNALS}
    sys.argv = ["train_lm.py", *map(str, arguments)]
    try:
        launch(hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train_lm")(main))
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
        GlobalHydra.instance().clear()
    raise AssertionError("launch always ends the process")


def start(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.Popen:
    """`python train_lm.py ...` as a process in a session of its own, stdout and stderr in one pipe."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch's sources at each start costs 6 seconds
    command = [sys.executable, str(REPOSITORY / "train_lm.py"), *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )


def only_run(root: Path) -> Path:
    """The one run directory below `root`."""
    (found,) = {path.parent for path in root.rglob("config.yaml")}
    return found


def rows(run: Path, *, timeless: bool = True) -> list[dict]:
    """The rows of metrics.jsonl, by default without what depends on the clock."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not (timeless and k == "tokens_per_s")} for row in read]


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())
