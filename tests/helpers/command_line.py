"""Running train_lm.py in tests: in this process where an exit code and the output are enough (a start costs seconds),
as a real process where signals, kills or another working directory matter."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob

from fourierformer.config import RunSpec
from fourierformer.runs.launch import launch
from fourierformer.runs.spec import read_spec
from fourierformer.tracking.jsonl import read_lines
from fourierformer.training.signals import SIGNALS

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
# what depends on the clock
CLOCK = {"tokens_per_s", "images_per_s", "pairs_per_s", "points_per_s", "data_wait", "seconds", "check"}
# A model so small that starting it is what takes time.
MODEL = ("debug=smoke", "attention=softmax", "model.layers=1", "model.dim=16", "model.inner=16", "model.length=8")

# The same for images: the built-in digits, everything random that there is.
IMAGES = (
    *("debug=smoke_vit", "attention=softmax", "model.depth=1", "model.dim=16", "model.heads=2", "model.patch=8"),
    *("model.drop_path=0.3", "augment=cifar", "global_batch_size=8", "evaluation.images_per_forward=24"),
)


def train_lm(*arguments: str) -> int:
    """`python train_lm.py ...` in this process; its exit code. Output goes to stdout and stderr as usual. The page of
    the run has no charts, which take as long as the training: tests/report draws them."""
    return _train("train_lm", *arguments)


def train_vit(*arguments: str) -> int:
    """`python train_vit.py ...`, likewise."""
    return _train("train_vit", *arguments)


@cache  # Hydra takes a quarter of a second
def spec_of(*overrides: str, script: str = "train_lm") -> RunSpec:
    """The spec of a command."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return read_spec(compose(script, list(overrides)))


def one_job(arguments: list[str]) -> list[str]:
    """The overrides of a sweep's first job: of `a=1,2` the value 1, of a glob softmax or the first file; what only
    Hydra itself reads left out."""
    overrides = []
    for text in arguments:
        if text.startswith("-"):
            continue
        override = OverridesParser.create().parse_override(text)
        if isinstance(override.value(), Glob):
            files = sorted(path.stem for path in (CONFIGS / override.key_or_group).glob("*.yaml"))
            matching = override.value().filter(files)
            text = f"{override.key_or_group}={'softmax' if 'softmax' in matching else matching[0]}"
        elif override.is_sweep_override():
            text = f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
        if not text.startswith("hydra"):
            overrides.append(text)
    return overrides


def _train(script: str, *arguments: str) -> int:
    GlobalHydra.instance().clear()
    before, handlers = sys.argv, {number: signal.getsignal(number) for number in SIGNALS}
    sys.argv = [f"{script}.py", *map(str, arguments)]
    try:
        with patch("fourierformer.report.picture.Picture.inline", lambda picture: ""):
            launch(script)
    except SystemExit as end:
        return end.code
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
        GlobalHydra.instance().clear()
    raise AssertionError("launch always ends the process")


def together(world: int, script: str, *arguments: str) -> list[int]:
    """The exit codes of `world` processes that share a run, forked, since a start costs seconds."""
    processes = started(world, script, *arguments)
    for process in processes:
        process.join(timeout=200)
    return [process.exitcode for process in processes]


def started(world: int, script: str, *arguments: str) -> list[multiprocessing.Process]:
    """The same while they run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_as_task, args=(rank, world, port, script, arguments)) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


def _as_task(rank: int, world: int, port: int, script: str, arguments: tuple[str, ...]) -> None:
    """In a forked process: it never returns to the tests."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    code = 99
    try:
        code = _train(script, *arguments)
    finally:
        sys.stdout.flush()
        os._exit(code)


def start(*arguments: str, cwd: Path = REPOSITORY, script: str | Path = "train_lm", world: int = 1) -> subprocess.Popen:
    """`python train_lm.py ...` as a process in a session of its own, stdout and stderr in one pipe; under torchrun with
    several."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling torch's sources at each start costs 6 seconds
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
    command = [sys.executable, *torchrun, str(REPOSITORY / f"{script}.py"), *map(str, arguments)]
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
    (run,) = {path.parent for path in root.rglob("config.yaml")}
    return run


def rows(run: Path, *, timeless: bool = True) -> list[dict]:
    """The rows of metrics.jsonl, by default without what depends on the clock."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not (timeless and k in CLOCK)} for row in read]


def read_metrics(path: Path) -> list[dict]:
    """The rows of a metrics.jsonl that may still be written."""
    return read_lines(path.read_bytes()).rows


def status(run: Path) -> dict:
    return json.loads((run / "status.json").read_text())
