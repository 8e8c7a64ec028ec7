"""Loader processes ignore signals, and end when they are no longer needed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fourierformer.data.images.corpus import worker_count
from tests.helpers.command_line import REPOSITORY
from tests.helpers.image_cases import files, image_data, write


def test_workers_are_shared_by_the_processes_of_a_machine():
    cores = len(os.sched_getaffinity(0))
    assert worker_count(image_data("imagenet")) == cores
    assert worker_count(image_data("imagenet"), local_world=10 * cores) == 1
    assert worker_count(image_data("imagenet", workers=0), local_world=2) == 0


CHILD = """
import signal, sys
from pathlib import Path
import numpy, torch
sys.path.insert(0, {repository!r})
from fourierformer.data.images.batches import training_batches
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.folder import FolderSet

images = FolderSet(Path({folder!r}))
order = ImageOrder(len(images), 12, seed=0, repeats=1, mix_batch=None, mixing=False, micro_batch=None)
signal.signal(signal.SIGTERM, lambda *_: None)  # as the training loop does: forked processes inherit it

def transform(image):
    return torch.from_numpy(numpy.array(image.resize((8, 8))))

batches = training_batches(images, order, transform, start=0, workers=2, pin=False)
next(batches)
print("ready", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        batches.close()
    else:
        for _ in range(40):
            batch = next(batches)
    print("done", flush=True)
"""


@pytest.fixture
def loading(tmp_path):
    """A process that loads, and its two loader processes."""
    folder = write(tmp_path / "root", "folder", files()) / "train"
    code = CHILD.format(repository=str(REPOSITORY), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    yield process, [int(child) for child in children]
    process.kill()
    for child in children:  # one that lives on would keep the pipe open
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    process.communicate()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


def ask(process, word: str) -> str:
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_signals_do_not_reach_loader_processes_and_closing_ends_them(loading):
    process, workers = loading
    assert len(workers) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        for worker in workers:
            os.kill(worker, number)
    time.sleep(0.3)
    assert all(map(alive, workers))
    assert ask(process, "go") == "done\n"
    assert all(map(alive, workers))
    assert ask(process, "close") == "done\n"
    assert gone(workers, 5)


def test_loader_processes_end_when_their_parent_is_killed(loading):
    process, workers = loading
    assert all(map(alive, workers))
    process.kill()
    assert gone(workers, 10)


ORPHAN = """
import multiprocessing, os, sys, time
sys.path.insert(0, {repository!r})
from fourierformer.data.images.batches import _begin_worker

def begin_late(parent):
    while os.getppid() == parent:
        time.sleep(0.01)
    _begin_worker(0)
    print("lives on", flush=True)

multiprocessing.get_context("fork").Process(target=begin_late, args=(os.getpid(),)).start()
os._exit(0)
"""


def test_a_loader_process_whose_parent_died_before_it_began_ends():
    """The signal of a parent's death is sent once: to a process that asks for it later, never."""
    code = ORPHAN.format(repository=str(REPOSITORY))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("", "")
