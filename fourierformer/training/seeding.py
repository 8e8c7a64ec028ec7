"""Randomness without state: what a step draws depends on (seed, step, micro-step, rank) and on nothing that happened
before.

So a run that was stopped anywhere continues with the very same numbers, and no generator has to be saved.
"""

import hashlib
import random

import numpy
import torch


def seed_everything(seed: int) -> None:
    """For what is drawn outside the steps, such as the initial weights."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)


def step_seed(seed: int, step: int, micro: int, rank: int) -> int:
    """A 63-bit hash (torch takes a signed 64-bit seed). The same on every machine and version, unlike Python's
    hash()."""
    digest = hashlib.blake2b(f"{seed} {step} {micro} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
