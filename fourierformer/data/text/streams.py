"""The order of the tokens of a language model, as pure functions of the step, so that a run can resume at any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fourierformer.errors import SetupError
from fourierformer.processes import own_share

if TYPE_CHECKING:
    from torch import Tensor


class OrderedStreams:
    """The paper's order: `batch_size` contiguous streams, read side by side in slices of `length`, never shuffled.

    As in Transformer-XL, which the paper's code builds on: the tokens are trimmed to a multiple of the batch size,
    stream b holds the b-th contiguous part, step t reads the t-th slice of every stream, the target is the next token,
    and an epoch's last slice is shorter. After it the next epoch starts again at the front.
    WikiText-103, small: (103,227,021 // 96 - 1) / 256 = 4,200.3 -> 4,201 steps per epoch, the last with 80 positions.
    """

    def __init__(self, tokens: np.ndarray, batch_size: int, length: int):
        self.steps_per_epoch = steps_per_epoch(len(tokens), batch_size, length)
        per_stream = len(tokens) // batch_size
        self.streams = tokens[: per_stream * batch_size].reshape(batch_size, per_stream)
        self.length = length

    def batch(self, step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
        """Inputs and targets of step 0, 1, 2, ...; rank r of `world` gets the r-th contiguous share of the streams."""
        import torch  # here, so that preparing data starts in a fraction of a second

        share = own_share(f"a global batch of {len(self.streams)} streams", len(self.streams), rank, world)
        start = step % self.steps_per_epoch * self.length
        # reads only this slice of the memory-mapped file; embeddings and losses need int64
        part = torch.from_numpy(self.streams[share, start : start + self.length + 1].astype(np.int64))
        return part[:, :-1].contiguous(), part[:, 1:].contiguous()

    def tokens_after(self, steps: int) -> int:
        """The number of targets in the first `steps` steps, exactly: an epoch's last slice is shorter."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        batch_size, per_stream = self.streams.shape
        return batch_size * (epochs * (per_stream - 1) + rest * self.length)


def steps_per_epoch(tokens: int, batch_size: int, length: int) -> int:
    """Steps per epoch, including the last one with a shorter slice. SetupError for fewer tokens than a step reads."""
    per_stream = tokens // batch_size
    if per_stream < length + 1:
        needed = f"{batch_size} streams of {length} + 1 tokens ({batch_size * (length + 1):,})"
        way_out = "lower the batch size or the length, or take more text"
        raise SetupError(f"{tokens:,} tokens are too few for {needed}: {way_out}")
    return -(-(per_stream - 1) // length)


def windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """All N - L windows of the sliding evaluation and their targets, (N - L, L) each, as views of the tokens."""
    if len(tokens) <= length:
        window = f"a window of {length} tokens and the token after it"
        raise SetupError(f"{len(tokens):,} tokens are too few for {window}: lower the length")
    every = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)
    return every[:, :-1], every[:, 1:]
