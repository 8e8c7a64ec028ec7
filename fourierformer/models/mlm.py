"""A masked language model: a transformer encoder that predicts the words at masked positions from both sides.

Devlin et al. 2019 (BERT, arXiv 1810.04805), without its second task. Layers, initialisation and output are those of the
causal language model (lm.py), so that only the attention's direction differs.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

from fourierformer.attention import Attention, Geometry
from fourierformer.models.adaptive import TiedAdaptiveSoftmax
from fourierformer.models.config import MaskedLMConfig
from fourierformer.models.lm import initialise, reversed_sinusoids, text_layers


class MaskedLM(nn.Module):
    """Token ids 0 .. vocab_size - 1, and the id vocab_size for a masked token, which is never predicted."""

    positions: Tensor

    def __init__(
        self,
        config: MaskedLMConfig,
        vocab_size: int,
        cutoffs: list[int],
        attention: Callable[[Geometry], Attention],
        seed: int = 0,
    ):
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = nn.Embedding(vocab_size + 1, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers, self.final_norm = text_layers(config, attention, seed)
        self.output = TiedAdaptiveSoftmax(vocab_size, config.dim, cutoffs)
        self.register_buffer("positions", reversed_sinusoids(config.length, config.dim), persistent=False)
        self.apply(initialise)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        targets: Tensor,
        rare: list[Tensor] | None = None,
        *,
        mean: bool = False,
    ) -> Tensor:
        """-log p(target) at the masked positions, (n,) float32, or their mean: tokens (B, N); positions (n,), counted
        row by row, 0 .. B N - 1; targets (n,). `rare` is output.rare_places(targets)."""
        loss = self.output.mean_nll if mean else self.output.nll
        return loss(self._at(tokens, positions), targets, self._words, rare)

    def log_probabilities(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """log p of every word at these positions: (n, vocab_size)."""
        return self.output.log_probabilities(self._at(tokens, positions), self._words)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last layer's output: token ids (B, N) -> (B, N, dim)."""
        h = self.embedding(tokens) * math.sqrt(self.config.dim)
        h = self.dropout(h + self.positions[-tokens.shape[1] :])
        for layer in self.layers:
            h = layer(h)
        return self.dropout(self.final_norm(h))

    def compile_blocks(self, **options) -> None:
        """Applies torch.compile layer by layer: all have the same shapes, so that one compilation is enough."""
        for layer in self.layers:
            layer.compile(**options)

    def _at(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.hidden(tokens).flatten(0, 1).index_select(0, positions)

    @property
    def _words(self) -> Tensor:
        return self.embedding.weight[: self.vocab_size]
