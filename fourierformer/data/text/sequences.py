"""Independent sequences of one length, such as images: whole ones only, no window across two of them.

A sequence x_1 ... x_L is predicted token by token, all L of them: the model sees START, x_1, ..., x_{L-1}. START is the
token 0, which always stands first and so says nothing; the output needs no class for it, and a model that knows nothing
costs log2(vocabulary) bits per token exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fourierformer.data.images.order import ImageOrder
from fourierformer.errors import SetupError

if TYPE_CHECKING:
    from torch import Tensor

START = 0


class ShuffledSequences:
    """Every epoch in an order of its own, a function of (seed, epoch): nothing to save, resumable at any step.

    What is left over after the last full batch of an epoch is not shown in it. CIFAR-10 in batches of 128: 50,000 //
    128 = 390 steps, 80 images left over.
    """

    def __init__(self, tokens: np.ndarray, batch_size: int, length: int, seed: int):
        self.sequences = tokens.reshape(-1, length)
        self.order = ImageOrder(
            len(self.sequences), batch_size, seed=seed, repeats=1, mix_batch=None, mixing=False, micro_batch=None
        )
        self.steps_per_epoch = steps_per_epoch(len(tokens), batch_size, length)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs and targets of step 0, 1, 2, ...; rank r of `world` gets the r-th contiguous share of the batch."""
        chosen = self.order.indices(step)
        if len(chosen) % world:
            raise SetupError(f"a global batch of {len(chosen)} sequences cannot be shared equally by {world} processes")
        share = len(chosen) // world
        return shifted(self.sequences[chosen[rank * share : (rank + 1) * share]])

    def tokens_after(self, steps: int) -> int:
        return steps * self.order.global_batch * self.sequences.shape[1]


def steps_per_epoch(tokens: int, batch_size: int, length: int) -> int:
    return tokens // length // batch_size


def shifted(sequences: np.ndarray) -> tuple[Tensor, Tensor]:
    """(B, L) sequences -> inputs, moved on by one with START in front, and targets: all of them."""
    import torch  # here, so that preparing data starts in a fraction of a second

    targets = torch.from_numpy(sequences.astype(np.int64))
    inputs = targets.roll(1, dims=1)
    inputs[:, 0] = START
    return inputs, targets
