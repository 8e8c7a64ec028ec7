"""Choose the tokens that a masked language model has to predict, and their replacement in its input.

Devlin et al. 2019 (arXiv 1810.04805, section 3.1): 15 % of the tokens are chosen; of these, 80 % are replaced by the
mask, 10 % by a random token, and 10 % stay, so that a mask does not mark all tokens to be predicted. Each row is drawn
with its own seed: the same seed gives the same masks, in any batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest stay unchanged


def mask_tokens(tokens: Tensor, seeds: Sequence[int], rate: float, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The model's input for tokens (B, L), and the chosen positions, counted row by row: (B, L), (B n,).

    n = rate L, rounded, and at least 1. The mask has the id `vocab_size`. seeds: one for each row.
    """
    seen, positions = tokens.clone(), []
    length = tokens.shape[1]
    count = max(1, round(rate * length))
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(length, generator=generator)[:count].sort().values
        fate = torch.rand(count, generator=generator)
        words = torch.randint(vocab_size, (count,), generator=generator)
        words = torch.where(fate < MASKED + RANDOM, words, tokens[row, chosen])
        seen[row, chosen] = words.masked_fill(fate < MASKED, vocab_size)
        positions.append(chosen + row * length)
    return seen, torch.cat(positions)
