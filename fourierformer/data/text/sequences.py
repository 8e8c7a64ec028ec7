"""Batches of independent sequences of one length, such as images.

All L tokens of a sequence x_1 ... x_L are predicted: the model sees START, x_1, ..., x_{L-1}. START is the token 0: it
is always first, so it carries no information, and the output needs no class for it. Predicting all tokens with equal
probability costs exactly log2(vocabulary) bits per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fourierformer.data.order import EpochOrder
from fourierformer.errors import SetupError

if TYPE_CHECKING:
    from torch import Tensor

START = 0


class ShuffledSequences:
    """Batches of sequences, in another order every epoch."""

    def __init__(self, tokens: np.ndarray, batch_size: int, length: int, seed: int):
        self.sequences = tokens.reshape(-1, length)
        self.order = EpochOrder(len(self.sequences), batch_size, seed=seed, unit="images")
        self.steps_per_epoch = self.order.steps_per_epoch

    def batch(self, step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs and targets of step 0, 1, 2, ...; rank r of `world` gets the r-th contiguous share of the batch."""
        chosen = self.order.indices(step)
        if len(chosen) % world:
            raise SetupError(
                f"a global batch of {len(chosen)} sequences cannot be shared equally by {world} processes: choose a "
                f"multiple of {world}"
            )
        share = len(chosen) // world
        return shifted(self.sequences[chosen[rank * share : (rank + 1) * share]])

    def tokens_after(self, steps: int) -> int:
        return steps * self.order.global_batch * self.sequences.shape[1]


def steps_per_epoch(tokens: int, batch_size: int, length: int) -> int:
    return tokens // length // batch_size


def shifted(sequences: np.ndarray) -> tuple[Tensor, Tensor]:
    """Inputs and targets of sequences (B, L): the inputs are the sequences moved on by one, with START in front."""
    import torch  # here, so that preparing data starts in a fraction of a second

    targets = torch.from_numpy(sequences.astype(np.int64))
    inputs = targets.roll(1, dims=1)
    inputs[:, 0] = START
    return inputs, targets
