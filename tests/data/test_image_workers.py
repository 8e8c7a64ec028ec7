"""Loader processes ignore signals, and end when they are no longer needed."""

import contextlib
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fourierformer.data.images.batches import _begin_worker, training_batches
from fourierformer.data.images.corpus import worker_count
from fourierformer.data.images.folder import FolderSet
from fourierformer.data.images.order import ImageOrder
from tests.helpers.image_cases import files, image_data, write

FORK = multiprocessing.get_context("fork")  # a start of Python takes seconds


def test_workers_are_shared_by_the_processes_of_a_machine():
    cores = len(os.sched_getaffinity(0))
    assert worker_count(image_data("imagenet")) == cores
    assert worker_count(image_data("imagenet"), local_world=10 * cores) == 1
    assert worker_count(image_data("imagenet", workers=0), local_world=2) == 0


def load(folder: Path, connection) -> None:
    """In a process of its own: loads batches as it is told to, with two loader processes."""
    images = FolderSet(folder)
    order = ImageOrder(len(images), 12, seed=0, repeats=1, mix_batch=None, mixing=False, micro_batch=None)
    signal.signal(signal.SIGTERM, lambda *_: None)  # as the training loop does: forked processes inherit it

    def transform(image):
        return torch.from_numpy(np.array(image.resize((8, 8))))

    batches = training_batches(images, order, transform, start=0, workers=2, pin=False)
    next(batches)
    while True:
        connection.send("done")
        if connection.recv() == "close":
            batches.close()
        else:
            for _ in range(40):
                next(batches)


@pytest.fixture
def loading(tmp_path):
    """A process that loads, what it is told with, and its two loader processes."""
    folder = write(tmp_path / "root", "folder", files()) / "train"
    connection, theirs = FORK.Pipe()
    process = FORK.Process(target=load, args=(folder, theirs))
    process.start()
    assert connection.recv() == "done"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    yield process, connection, [int(child) for child in children]
    process.kill()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    process.join()


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


def ask(connection, word: str) -> str:
    connection.send(word)
    return connection.recv()


def test_signals_do_not_reach_loader_processes_and_closing_ends_them(loading):
    _, connection, workers = loading
    assert len(workers) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        for worker in workers:
            os.kill(worker, number)
    time.sleep(0.3)
    assert all(map(alive, workers))
    assert ask(connection, "go") == "done"
    assert all(map(alive, workers))
    assert ask(connection, "close") == "done"
    assert gone(workers, 5)


def test_loader_processes_end_when_their_parent_is_killed(loading):
    process, _, workers = loading
    assert all(map(alive, workers))
    process.kill()
    assert gone(workers, 10)


def begin_late(parent: int, sender) -> None:
    while os.getppid() == parent:
        time.sleep(0.01)
    _begin_worker(0)
    sender.send("lives on")


def leave_an_orphan(sender) -> None:
    FORK.Process(target=begin_late, args=(os.getpid(), sender)).start()
    os._exit(0)


def test_a_loader_process_whose_parent_died_before_it_began_ends():
    """The signal of a parent's death is sent once: to a process that asks for it later, never."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=leave_an_orphan, args=(sender,))
    process.start()
    process.join()
    sender.close()
    assert receiver.poll(60)
    with pytest.raises(EOFError):
        receiver.recv()
