"""A masked language model: a transformer encoder that predicts the words at masked positions from both sides.

Devlin et al. 2019 (BERT, arXiv 1810.04805), without its second task. Layers, initialisation and output are those of the
causal language model (lm.py), so that only the attention's direction differs.
"""

from collections.abc import Callable

from torch import Tensor

from fourierformer.attention import Attention, Geometry
from fourierformer.models.config import MaskedLMConfig
from fourierformer.models.lm import TextModel


class MaskedLM(TextModel):
    """Token ids 0 .. vocab_size - 1, and the id vocab_size for a masked token, which is never predicted."""

    config: MaskedLMConfig

    def __init__(
        self, config: MaskedLMConfig, vocab_size: int, cutoffs: list[int], attention: Callable[[Geometry], Attention],
        seed: int = 0,
    ):  # fmt: skip
        super().__init__(config, vocab_size, cutoffs, attention, seed, more_ids=1)

    def forward(
        self, tokens: Tensor, positions: Tensor, targets: Tensor, rare: list[Tensor] | None = None, *,
        mean: bool = False,
    ) -> Tensor:  # fmt: skip
        """-log p(target) at the masked positions, (n,) float32, or their mean: tokens (B, N); positions (n,), counted
        row by row, 0 .. B N - 1; targets (n,). `rare` is output.rare_places(targets)."""
        loss = self.output.mean_nll if mean else self.output.nll
        return loss(self._at(tokens, positions), targets, self._words, rare)

    def log_probabilities(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """log p of every word at these positions: (n, vocab_size)."""
        return self.output.log_probabilities(self._at(tokens, positions), self._words)

    def _at(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.hidden(tokens).flatten(0, 1).index_select(0, positions)

    @property
    def _words(self) -> Tensor:
        return self.embedding.weight[: self.vocab_size]
