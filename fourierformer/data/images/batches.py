"""Batches of images from loader processes, independent of their number.

Before an image is transformed, every generator is seeded from (seed, step, row). Work is distributed in chunks smaller
than a batch: all processes work on the next batch, and memory stays small.
"""

import contextlib
import ctypes
import itertools
import math
import multiprocessing
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fourierformer.data.images.memory import InMemorySet
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.sets import ImageSet, Unreadable
from fourierformer.errors import SetupError

MOST_TRIED = 1000  # unreadable images in a row, at which the search for a readable one ends
CHUNK = 64  # images: 0.5 s of one core at 224 x 224, 39 MB
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # the training process handles them

T = TypeVar("T")
Transform = Callable[[Image.Image], Tensor]
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


@dataclass(frozen=True)
class ImageBatch:
    """One micro-batch of a step on one process; in an evaluation, `rows` are the indices of the images."""

    step: int
    images: Tensor  # (B, 3, size, size) float32
    labels: Tensor  # (B,) int64
    rows: Tensor  # (B,) int64, of the global batch
    pieces: tuple[tuple[int, int, int], ...]  # as in MicroBatch
    unreadable: tuple[int, ...]  # indices of unreadable images


@dataclass(frozen=True)
class _Work:
    """A chunk of a batch for one loader process; with seeds for training, where an unreadable image is replaced."""

    images: np.ndarray
    seeds: list[int] | None


@dataclass(frozen=True)
class _Done:
    images: Tensor
    labels: np.ndarray
    kept: np.ndarray  # positions in the chunk
    unreadable: list[int]
    failure: str | None = None  # an error for the training process to raise: a loader process would add a traceback


def training_batches(
    images: ImageSet, order: ImageOrder, transform: Transform, *, start: int, workers: int, pin: bool
) -> Generator[ImageBatch]:
    """The micro-batches of all steps from `start` on, without end. Closing the iterator ends the loader processes."""

    def work() -> Iterator[_Work]:
        for step in itertools.count(start):
            shown = order.indices(step)
            for part in order.micro_batches(step):
                seeds = [order.sample_seed(step, row) for row in part.rows.tolist()]
                for chunk in _chunks(len(seeds)):
                    yield _Work(shown[part.rows[chunk]], seeds[chunk])

    ahead = 2 * max(len(part.rows) for part in order.micro_batches(start))
    with contextlib.closing(_results(images, transform, work(), workers, ahead)) as done:
        for step in itertools.count(start):
            for part in order.micro_batches(step):
                finished = list(itertools.islice(done, len(_chunks(len(part.rows)))))
                yield _assemble(step, finished, torch.from_numpy(part.rows), part.pieces, pin)


def evaluation_batches(
    images: ImageSet, transform: Transform, *, batch: int, workers: int, rank: int, world: int, limit: int | None
) -> Iterator[ImageBatch | None]:
    """Batches of a rank; all ranks together have every image once. All have equally many items, None for a rank without
    images left.

    A limit draws that many images at random, always the same ones: neighbours often have the same class, and so have
    images at equal distances. An unreadable image is left out and reported; a batch of such images has no rows.
    """
    count = min(limit or len(images), len(images))
    chosen = np.sort(np.random.default_rng(0).permutation(len(images))[:count])
    own = chosen[rank::world]
    items = math.ceil(math.ceil(count / world) / batch)  # as many as rank 0 needs
    shares = [own[i * batch : (i + 1) * batch] for i in range(items)]
    work = (_Work(share[chunk], None) for share in shares for chunk in _chunks(len(share)))
    with contextlib.closing(_results(images, transform, work, workers, 2 * batch)) as done:
        for step, share in enumerate(shares):
            finished = list(itertools.islice(done, len(_chunks(len(share)))))
            kept = [share[chunk][part.kept] for chunk, part in zip(_chunks(len(share)), finished, strict=True)]
            yield _assemble(step, finished, torch.from_numpy(np.concatenate(kept)), (), False) if finished else None


def _chunks(size: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, size)) for start in range(0, size, CHUNK)]


def _assemble(step: int, finished: list[_Done], rows: Tensor, pieces: tuple, pin: bool) -> ImageBatch:
    for done in finished:
        if done.failure:
            raise SetupError(done.failure)
    parts = [done.images for done in finished]
    if pin:  # directly into pinned memory, for the transfer to a GPU
        images = torch.empty((len(rows), *parts[0].shape[1:]), pin_memory=True)
        torch.cat(parts, out=images)
    else:
        images = torch.cat(parts) if len(parts) > 1 else parts[0]
    labels = torch.from_numpy(np.concatenate([done.labels for done in finished]))
    unreadable = tuple(index for done in finished for index in done.unreadable)
    return ImageBatch(step, images, labels, rows, pieces, unreadable)


def _results(images: ImageSet, transform, work: Iterable[_Work], workers: int, ahead: int) -> Generator[_Done]:
    """Do the work in loader processes, up to `ahead` images in advance, and yield the results in order.

    Closing it ends the processes. Otherwise an error's traceback could keep them until this process ends, which would
    wait for them for ever, since they ignore SIGTERM.
    """
    if isinstance(images, InMemorySet):
        images.decode()
    loader = DataLoader(
        _Reader(images, transform),
        batch_size=None,
        sampler=work,
        collate_fn=_as_it_is,
        num_workers=workers,
        worker_init_fn=_begin_worker,
        prefetch_factor=max(2, math.ceil(ahead / (CHUNK * workers))) if workers else None,
        generator=torch.Generator(),  # by default it draws from the generator of the model's dropout
    )
    # blocked until a new process, which inherits the handlers of this one, ignores them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        results = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    yield from results


def _as_it_is(done: T) -> T:
    return done


def _begin_worker(number: int) -> None:
    if sys.platform == "linux":  # PyTorch's own check for a dead parent, every five seconds, does not always suffice
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        parent = multiprocessing.parent_process()
        if parent and parent.pid != os.getppid():  # it died before that call, so no signal would come
            os._exit(1)
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    # for a dozen of ImageNet's files, whose pixels are not affected
    warnings.filterwarnings("ignore", "(Possibly c|C)orrupt EXIF data")


class _Reader(Dataset):
    """The work of a loader process: read, seed, transform, stack."""

    def __init__(self, images: ImageSet, transform):
        self.images, self.transform = images, transform

    def __getitem__(self, work: _Work) -> _Done:
        try:
            return self._done(work)
        except SetupError as error:
            return _Done(torch.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), [], str(error))

    def _done(self, work: _Work) -> _Done:
        tensors: list[Tensor] = []
        labels: list[int] = []
        kept: list[int] = []
        unreadable: list[int] = []
        with _generators_restored():
            for position, index in enumerate(work.images.tolist()):
                image_and_label = self._read(index, unreadable, replace=work.seeds is not None)
                if image_and_label is None:
                    continue
                image, label = image_and_label
                if work.seeds is not None:
                    _seed(work.seeds[position])
                tensors.append(self.transform(image))
                labels.append(label)
                kept.append(position)
        # in a loader process, default_collate stacks in memory that the training process can see
        stacked = default_collate(tensors) if tensors else torch.empty(0)
        return _Done(stacked, np.array(labels, np.int64), np.array(kept, np.int64), unreadable)

    def _read(self, index: int, unreadable: list[int], replace: bool) -> tuple[Image.Image, int] | None:
        """An image and its label. For an unreadable one with `replace` the next readable one, else None."""
        tried = min(len(self.images), MOST_TRIED)
        for candidate in range(index, index + tried):
            try:
                return self.images.read(candidate % len(self.images))
            except Unreadable as error:
                unreadable.append(error.index)
            if not replace:
                return None
        first = self.images.name_of(index)
        raise SetupError(f"none of {tried:,} images in a row can be read, from {first} on. Copy the data again.")


def _seed(seed: int) -> None:
    """Seed the three generators of transforms. torch.manual_seed would seed GPUs too, and is slow."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def _generators_restored() -> Iterator[None]:
    """A context that restores the state of all generators, which the model shares without loader processes."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
