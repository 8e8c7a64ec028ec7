"""Randomness without state: what a step draws depends on (seed, step, micro-step, rank) and on nothing that happened
before.

So a run that was stopped anywhere continues with the very same numbers, and no generator has to be saved.
"""

import random

import numpy
import torch

from fourierformer.seeds import seed_of


def seed_everything(seed: int) -> None:
    """For what is drawn outside the steps, such as the initial weights."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)


def step_seed(seed: int, step: int, micro: int, rank: int) -> int:
    return seed_of(seed, step, micro, rank)
