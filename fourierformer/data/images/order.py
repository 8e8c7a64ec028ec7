"""The image in each row of a step's batch, and the rows of each process, as pure functions of the step.

The rows of a step's global batch are 0 .. G-1. The image of a row, its augmentation and the row that it is mixed with
depend on (seed, step, row) only; processes and micro-batches merely divide the rows.

order = ImageOrder(1_281_167, 1024, seed=0, repeats=3, mix_batch=256, mixing=True, micro_batch=None)
order.indices(step)            # (1024,) images
for micro_batch in order.micro_batches(step): order.indices(step)[micro_batch.rows]
"""

from dataclasses import dataclass

import numpy as np

from fourierformer.data.order import EpochOrder
from fourierformer.errors import SetupError
from fourierformer.processes import own_share
from fourierformer.seeds import seed_of


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one process."""

    rows: np.ndarray  # of the global batch
    # (mix group, start, stop): rows[start:stop] are mixed with the same rows in reverse order; empty without mixing
    pieces: tuple[tuple[int, int, int], ...]


class ImageOrder(EpochOrder):
    """Repeated augmentation and batch mixing as in DeiT, defined for the global batch.

    An epoch is a permutation in which each image occurs `repeats` times in a row; a step takes the next G of it. DeiT
    gives rank r of its W processes the rows r, r + W, ..., and each process mixes its own batch with itself reversed.
    Here such a batch of `mix_batch` rows is a mix group, whichever process computes it: of n = G / mix_batch groups,
    row i is in group i % n.
    """

    def __init__(
        self,
        images: int,
        global_batch: int,
        *,
        seed: int,
        repeats: int,
        mix_batch: int | None,
        mixing: bool,
        micro_batch: int | None,
        rank: int = 0,
        world: int = 1,
    ):
        super().__init__(images, global_batch, seed=seed, unit="images", repeats=repeats)
        micro_batch = micro_batch or global_batch
        if mixing:
            self._micro_batches = _mixed_batches(global_batch, mix_batch or global_batch, micro_batch, rank, world)
        else:
            own_share(f"global_batch_size={global_batch}", global_batch, rank, world)
            own = _slices(np.arange(global_batch)[rank::world], micro_batch)
            self._micro_batches = [MicroBatch(rows, ()) for rows in own]

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro-batches of this process; the same division in every step."""
        return self._micro_batches

    def sample_seed(self, step: int, row: int) -> int:
        """Seed of all random changes to the image of a row."""
        return seed_of(self.seed, step, row)


def _mixed_batches(size: int, mix_batch: int, micro_batch: int, rank: int, world: int) -> list[MicroBatch]:
    """The micro-batches of a process, which takes every world-th pair of rows that are mixed with each other.

    Row p = b n + g is position b of group g, and position B-1-b of that group is row (B-1-b) n + g = G - n - p + 2g.
    With as many processes as groups, p % world is the group: each process holds a whole group, as in DeiT.
    """
    if mix_batch % 2 or size % mix_batch:
        valid = "augment.mix_batch must be even and divide it (augment.mix_batch=null mixes the whole batch as one)"
        raise SetupError(f"global_batch_size={size} cannot be mixed in batches of {mix_batch}: {valid}")
    if micro_batch % 2:
        raise SetupError(f"trainer.micro_batch_size={micro_batch} must be even: mixing works on pairs of images")
    if size // 2 % world:
        problem = f"{size // 2} pairs of images to mix, which {world} processes cannot share evenly"
        raise SetupError(f"global_batch_size={size} is {problem}: use a multiple of {2 * world}")
    groups = size // mix_batch
    pairs = np.arange(size // 2)[rank::world]
    pairs = pairs[np.argsort(pairs % groups, kind="stable")]
    return [_mixed_batch(chosen, size, groups) for chosen in _slices(pairs, micro_batch // 2)]


def _mixed_batch(pairs: np.ndarray, size: int, groups: int) -> MicroBatch:
    """A micro-batch of pairs: per group the first rows, then their partners reversed, so that a reversal swaps them."""
    rows, pieces, start = [], [], 0
    for group in np.unique(pairs % groups).tolist():
        first = pairs[pairs % groups == group]
        partners = size - groups - first + 2 * group
        rows += [first, partners[::-1]]
        pieces.append((group, start, start + 2 * len(first)))
        start += 2 * len(first)
    return MicroBatch(np.concatenate(rows), tuple(pieces))


def _slices(values: np.ndarray, size: int) -> list[np.ndarray]:
    return [values[start : start + size] for start in range(0, len(values), size)]
