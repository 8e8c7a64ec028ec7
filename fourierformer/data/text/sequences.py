"""Batches of independent sequences of one length, such as images.

All L tokens of a sequence x_1 ... x_L are predicted from the inputs START, x_1, ..., x_{L-1}. START is the token 0: it
is always first, so it carries no information, and the output needs no class for it. A uniform prediction costs exactly
log2(vocabulary) bits per token.
"""

import numpy as np
import torch
from torch import Tensor

from fourierformer.data.order import EpochOrder
from fourierformer.processes import own_share

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
        share = own_share(f"a global batch of {len(chosen)} sequences", len(chosen), rank, world)
        return shifted(self.sequences[chosen[share]])

    def tokens_after(self, steps: int) -> int:
        return steps * self.order.global_batch * self.sequences.shape[1]


def steps_per_epoch(tokens: int, batch_size: int, length: int) -> int:
    """SetupError for fewer images than a step takes."""
    return EpochOrder(tokens // length, batch_size, seed=0, unit="images").steps_per_epoch


def shifted(sequences: np.ndarray) -> tuple[Tensor, Tensor]:
    """Inputs and targets of sequences (B, L): the inputs are the sequences shifted by one, with START in front."""
    targets = torch.from_numpy(sequences.astype(np.int64))
    inputs = targets.roll(1, dims=1)
    inputs[:, 0] = START
    return inputs, targets
