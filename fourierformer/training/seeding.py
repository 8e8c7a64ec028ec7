"""Seeds of a run. The random numbers of a step depend on (seed, step, micro-step, rank) alone: a resumed run has those
of an uninterrupted one, without saving a generator."""

import random

import numpy
import torch

from fourierformer.seeds import seed_of


def seed_everything(seed: int) -> None:
    """Seed all generators, for random numbers outside of steps, such as the initial weights."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)


def step_seed(seed: int, step: int, micro: int, rank: int) -> int:
    return seed_of(seed, step, micro, rank)
