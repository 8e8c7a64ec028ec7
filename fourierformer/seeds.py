"""Seeds computed from their purpose, so that no state of a generator has to be kept in a checkpoint."""

import hashlib
import random


def seed_of(*parts: object) -> int:
    """A 63-bit seed for a purpose, such as ("rfa", seed, layer): torch takes a signed 64-bit one. A hash, the same on
    every machine and version, unlike Python's hash()."""
    text = " ".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed all generators, for random numbers outside of steps, such as the initial weights.

    The random numbers of a step depend on seed_of(seed, step, micro-step, rank) alone: a resumed run has those of an
    uninterrupted one, without saving a generator.
    """
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)
