"""The encoder-decoder transformer: an encoder reads the source, a decoder attends to it and writes the answer.

Vaswani et al. 2017 (arXiv 1706.03762): post-LN, sinusoidal positions (learned ones are one table for both texts), one
embedding for source, answer and output.
Three attentions, possibly different mechanisms: of the encoder over the source, of the decoder over the answer so far
(causal), and from the decoder to the encoder's output (cross).

Parameters at V tokens and L layers each, without biases in the attention (softmax; N = dim, F = inner):
embedding V N and output bias V; encoder L (4 N^2 + 2 N F + F + N + 4 N); decoder L (8 N^2 + 2 N F + F + N + 6 N).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourierformer.attention import Attention, Geometry
from fourierformer.attention.base import State
from fourierformer.attention.switches import Carry
from fourierformer.models.config import Part, Seq2SeqConfig
from fourierformer.models.dropout import dropout_layer
from fourierformer.models.lm import (
    TransformerLayer,
    carry_of,
    feed_forward,
    final_norm,
    initialise,
    norm_layer,
    reversed_sinusoids,
    set_positions,
    start_all,
)
from fourierformer.models.output_layer import at_least_float32

Build = Callable[[Geometry], Attention]


class DecoderLayer(nn.Module):
    """LN(h + drop(self-attention)), LN(h + drop(cross-attention)), LN(h + FF(h)); with norm=pre h + part(LN(h))."""

    def __init__(self, config: Seq2SeqConfig, attention: Attention, cross: Attention):
        super().__init__()
        self.pre_norm, self.attention, self.cross = config.norm == "pre", attention, cross
        self.attention_norm, self.cross_norm = norm_layer(config), norm_layer(config)
        self.dropout = dropout_layer(config)
        self.feed_forward = feed_forward(config)
        self.feed_forward_norm = norm_layer(config)

    def forward(self, h: Tensor, memory: Tensor, keep: Tensor, carry: Carry | None = None) -> Tensor:
        """h (B, T, dim), the encoder's output (B, S, dim), keep (B, S): False for padding."""
        return self._after_attention(h, self.attention(self._before_attention(h), carry=carry), memory, keep)

    def step(
        self, h: Tensor, memory: Tensor, keep: Tensor, state: State, position: int, carry: Carry | None = None
    ) -> tuple[Tensor, State]:
        """One more token, (B, 1, dim): equal to that position of `forward` over all tokens so far."""
        mixed, state = self.attention.step(self._before_attention(h), state, position, carry)
        return self._after_attention(h, mixed, memory, keep), state

    def _before_attention(self, h: Tensor) -> Tensor:
        return self.attention_norm(h) if self.pre_norm else h

    def _after_attention(self, residual: Tensor, mixed: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        h = residual + self.dropout(mixed)
        if self.pre_norm:
            h = h + self.dropout(self.cross(self.cross_norm(h), memory, keep=keep))
            return h + self.feed_forward(self.feed_forward_norm(h))
        h = self.attention_norm(h)
        h = self.cross_norm(h + self.dropout(self.cross(h, memory, keep=keep)))
        return self.feed_forward_norm(h + self.feed_forward(h))


class EncoderDecoder(nn.Module):
    """Sources and answers are rows of token ids; `keep` is False where a source is padding. Answers need no mask: a
    causal decoder does not see the padding after them."""

    positions: Tensor | None  # (length, dim), added to the embedding

    def __init__(self, config: Seq2SeqConfig, vocab_size: int, attention: Mapping[Part, Build], seed: int = 0):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.dropout = dropout_layer(config)

        def built(part: Part, layer: int) -> Attention:
            return attention[part](config.geometry(part, layer, seed))

        layers = range(config.layers)
        self.encoder = nn.ModuleList(TransformerLayer(config, built("encoder", i)) for i in layers)
        self.decoder = nn.ModuleList(DecoderLayer(config, built("decoder", i), built("cross", i)) for i in layers)
        self.encoder_norm, self.decoder_norm = final_norm(config), final_norm(config)
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        longest = max(config.source_length, config.target_length)
        # both begin at position 0
        set_positions(self, config.position, reversed_sinusoids(longest, config.dim).flip(0))
        self.apply(initialise)

    def forward(self, source: Tensor, keep: Tensor, inputs: Tensor, targets: Tensor, padding: int) -> Tensor:
        """The mean of -log p(target) over the tokens of each answer, (B,): source and keep (B, S), inputs and targets
        (B, T). Inputs are the targets moved on by one; targets that are `padding` do not count."""
        logits = at_least_float32(self.logits(inputs, self.encode(source, keep), keep))
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=padding, reduction="none")
        return losses.view(targets.shape).sum(1) / (targets != padding).sum(1)

    def encode(self, source: Tensor, keep: Tensor) -> Tensor:
        """The encoder's output: (B, S) -> (B, S, dim)."""
        h, carry = self._embedded(source), carry_of(self.encoder)
        for layer in self.encoder:
            h = layer(h, keep=keep, carry=carry)
        return self.encoder_norm(h)

    def logits(self, inputs: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        """Logits of the token after each of the inputs: (B, T) -> (B, T, V)."""
        h, carry = self._embedded(inputs), carry_of(self.decoder)
        for layer in self.decoder:
            h = layer(h, memory, keep, carry)
        return self._output(h)

    def start(self, batch: int) -> list[State] | None:
        """The state of every decoder layer before the first token; None where one has none of constant size."""
        return start_all(self.decoder, batch)

    def step(
        self, token: Tensor, position: int, memory: Tensor, keep: Tensor, states: list[State]
    ) -> tuple[Tensor, list[State]]:
        """Logits of the next token (B, V), given one more `token` (B,) at this position, and the next states."""
        h, after, carry = self._embedded(token[:, None], position), [], carry_of(self.decoder)
        for layer, state in zip(cast("Iterable[DecoderLayer]", self.decoder), states, strict=True):
            h, state = layer.step(h, memory, keep, state, position, carry)
            after.append(state)
        return self._output(h)[:, 0], after

    def compile_blocks(self, **options) -> None:
        """Apply torch.compile layer by layer: one compilation for the encoder, one for the decoder."""
        for layer in (*self.encoder, *self.decoder):
            layer.compile(**options)

    def _embedded(self, tokens: Tensor, first: int = 0) -> Tensor:
        h = self.embedding(tokens) * math.sqrt(self.config.dim)
        return self.dropout(h if self.positions is None else h + self.positions[first : first + tokens.shape[1]])

    def _output(self, h: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(h), self.embedding.weight, self.output_bias)


@torch.inference_mode()
def greedy(model: EncoderDecoder, source: Tensor, keep: Tensor, *, begin: int, end: int, padding: int) -> Tensor:
    """Greedy answers: the likeliest next token until `end`, then `padding`: (B, S) -> (B, T).

    The decoder uses a state of constant size where its attention has one; else it reads the answer again per token."""
    memory, states = model.encode(source, keep), model.start(len(source))
    answer = torch.full((len(source), 1), begin, device=source.device)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    for position in range(model.config.target_length):
        if states is None:
            logits = model.logits(answer, memory, keep)[:, -1]
        else:
            logits, states = model.step(answer[:, -1], position, memory, keep, states)
        token = logits.argmax(-1).masked_fill(ended, padding)
        answer = torch.cat([answer, token[:, None]], dim=1)
        ended |= token == end
        if ended.all():
            break
    return answer[:, 1:]
