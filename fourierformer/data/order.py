"""The example in each row of a step's batch, as a pure function of the step: a run can resume at any."""

import numpy as np
import torch

from fourierformer.errors import SetupError
from fourierformer.seeds import seed_of


class EpochOrder:
    """Examples in another order every epoch, a function of (seed, epoch), each `repeats` times in a row. An incomplete
    last batch is left out. CIFAR-10 in batches of 128: 50,000 // 128 = 390 steps, 80 images left out."""

    def __init__(self, count: int, global_batch: int, *, seed: int, unit: str, repeats: int = 1):
        if count < global_batch:
            reason = f"a step takes more {unit} than the {count:,} training {unit}; at most {count}"
            raise SetupError(f"global_batch_size={global_batch}: {reason}")
        self.count, self.global_batch, self.seed, self.repeats = count, global_batch, seed, repeats
        self.steps_per_epoch = count // global_batch  # 1,281,167 // 1,024 = 1,251; DeiT's with repeats are as many
        self._permutations: dict[int, np.ndarray] = {}  # two epochs, because loaders work ahead

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def epoch_seed(self, epoch: int) -> int:
        """Seed of the epoch's permutation. (timm's sampler uses the epoch alone, so all seeds have the same order.)"""
        return seed_of(self.seed, "epoch", epoch)

    def indices(self, step: int) -> np.ndarray:
        """The example of every row of a step, (global_batch,)."""
        epoch, step_in_epoch = divmod(step, self.steps_per_epoch)
        if epoch not in self._permutations:
            generator = torch.Generator().manual_seed(self.epoch_seed(epoch))
            kept = {other: order for other, order in self._permutations.items() if abs(other - epoch) == 1}
            self._permutations = kept | {epoch: torch.randperm(self.count, generator=generator).numpy()}
        rows = np.arange(step_in_epoch * self.global_batch, (step_in_epoch + 1) * self.global_batch)
        return self._permutations[epoch][rows // self.repeats]
