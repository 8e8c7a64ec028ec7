"""Random numbers that are a function of a key, a row and a position alone, the same on every device.

So a sequence gets the same noise in every process and micro-batch, a resumed step draws the numbers of the interrupted
one, and no generator's state has to be saved. Counter-based, as in Salmon et al. 2011 ("Parallel random numbers: as
easy as 1, 2, 3"), with the mixing function of SplitMix64 (Steele et al. 2014).
"""

import math

import torch
from torch import Tensor

STEP = -7046029254386353131  # 0x9e3779b97f4a7c15 as a signed number: 2^64 / the golden ratio, odd
FIRST = -4658895280553007687  # 0xbf58476d1ce4e5b9
SECOND = -7723592293110705685  # 0x94d049bb133111eb
BITS = 23  # of a float32 in (0, 1): (n + 1/2) / 2^23 is exact and neither 0 nor 1


def uniform(key: Tensor, rows: Tensor, *shape: int) -> Tensor:
    """(B, *shape) numbers in (0, 1), float32: key () and the numbers of B rows, both int64 and on one device."""
    position = torch.arange(1, math.prod(shape) + 1, device=rows.device)
    of_row = _mixed(key + STEP * (rows + 1))
    bits = _mixed(of_row[:, None] + STEP * position) >> (64 - BITS) & (2**BITS - 1)
    return ((bits + 0.5) / 2**BITS).float().view(len(rows), *shape)


def _mixed(z: Tensor) -> Tensor:
    """The mixing function: int64 arithmetic wraps around as SplitMix64's does."""
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift to the right that fills up with zeros: torch's shift repeats the sign."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
