"""Seeds computed from their purpose, so that no state of a generator has to be kept in a checkpoint."""

import hashlib
import random


def seed_of(*parts: object) -> int:
    """A seed for a purpose, such as ("rfa", seed, layer). A hash, equal on every machine and version, unlike hash()."""
    text = " ".join(map(str, parts))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # 63 bits: torch takes a signed 64-bit seed


def seed_everything(seed: int) -> None:
    """Seed all generators, for random numbers outside of steps, such as the initial weights. Those of a step depend on
    seed_of(seed, step, micro-step, rank) alone: a resumed run has the same ones without saving a generator."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)
