"""The transformers of text against their formulas, written out with plain functions in float64."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer import attention
from fourierformer.models.config import MaskedLMConfig, Seq2SeqConfig
from fourierformer.models.lm import LMConfig, WordLM, reversed_sinusoids
from fourierformer.models.mlm import MaskedLM
from fourierformer.models.seq2seq import EncoderDecoder

V, LENGTH, DIM, HEADS, LAYERS, DROPOUT = 20, 7, 16, 2, 2, 0.3
SHAPE = {"name": "t", "layers": LAYERS, "dim": DIM, "heads": HEADS, "inner": 24, "dropout": DROPOUT}
SOFTMAX = partial(attention.build, "softmax")
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
ANSWER = TOKENS.flip(1)[:, :5]


def whole(model: torch.nn.Module, training: bool) -> torch.nn.Module:
    """With weights so large that every part of a layer counts."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.double().train(training)


@pytest.fixture(params=[False, True], ids=["evaluation", "training"])
def training(request) -> bool:
    return request.param


@pytest.fixture
def dropped(training, monkeypatch) -> list[float]:
    """Replaces dropout by what `drop` of the formulas does. The rate of every call."""
    rates = []

    def halve(x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
        rates.append(p)
        return x / 2 if training else x

    monkeypatch.setattr(F, "dropout", halve)
    return rates


class Formulas:
    """Vaswani et al. 2017, post-LN: every method takes the weights of the model by their names."""

    def __init__(self, model: torch.nn.Module, training: bool):
        self.weights = dict(model.named_parameters())
        self.factor = 0.5 if training else 1.0

    def drop(self, x: Tensor) -> Tensor:
        return self.factor * x

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.drop(self.weights["embedding.weight"][tokens] * math.sqrt(DIM) + positions.double())

    def norm(self, name: str, x: Tensor) -> Tensor:
        if f"{name}.bias" not in self.weights:  # RMSNorm
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weights[f"{name}.weight"]
        return F.layer_norm(x, (DIM,), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def attention(self, name: str, x: Tensor, memory: Tensor, causal: bool) -> Tensor:
        """softmax(q k^T / sqrt(D)) v of every head, then their mixture."""
        of_q, of_k, of_v = self.weights[f"{name}.qkv.weight"].split(DIM)
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in (x @ of_q.T, memory @ of_k.T, memory @ of_v.T))
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(DIM // HEADS)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        mixed = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v).flatten(-2)
        return mixed @ self.weights[f"{name}.proj.weight"].T

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        weights = [value for key, value in self.weights.items() if key.startswith(f"{name}.feed_forward.")]
        if len(weights) == 2:  # SwiGLU
            of_gate, of_value = weights[0].chunk(2)
            gate = x @ of_gate.T
            return self.drop(self.drop(gate / (1 + (-gate).exp()) * (x @ of_value.T)) @ weights[1].T)
        inner, inner_bias, outer, outer_bias = weights
        return self.drop(self.drop((x @ inner.T + inner_bias).relu()) @ outer.T + outer_bias)

    def layer(self, name: str, h: Tensor, causal: bool, memory: Tensor | None = None) -> Tensor:
        """With memory, a layer of a decoder."""
        h = self.norm(f"{name}.attention_norm", h + self.drop(self.attention(f"{name}.attention", h, h, causal)))
        if memory is not None:
            looked = self.attention(f"{name}.cross", h, memory, causal=False)
            h = self.norm(f"{name}.cross_norm", h + self.drop(looked))
        return self.norm(f"{name}.feed_forward_norm", h + self.feed_forward(name, h))

    def pre_norm_layer(self, name: str, h: Tensor, causal: bool, memory: Tensor | None = None) -> Tensor:
        x = self.norm(f"{name}.attention_norm", h)
        h = h + self.drop(self.attention(f"{name}.attention", x, x, causal))
        if memory is not None:
            x = self.norm(f"{name}.cross_norm", h)
            h = h + self.drop(self.attention(f"{name}.cross", x, memory, causal=False))
        return h + self.feed_forward(name, self.norm(f"{name}.feed_forward_norm", h))


RECIPES = pytest.mark.parametrize(
    "recipe", [{}, {"norm_kind": "rms"}, {"feed_forward": "swiglu"}], ids=["paper", "rms", "swiglu"]
)


@RECIPES
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_language_models(causal, norm, recipe, training, dropped):
    """Dropout after the embedding, after attention, twice in the feed-forward part, and at the end."""
    if causal:
        model = WordLM(LMConfig(**SHAPE, length=LENGTH, norm=norm, **recipe), V, [], SOFTMAX)
    else:
        model = MaskedLM(MaskedLMConfig(**SHAPE, length=LENGTH, mask_rate=0.15, norm=norm, **recipe), V, [], SOFTMAX)
    formulas = Formulas(whole(model, training), training)
    h = formulas.embedded(TOKENS, reversed_sinusoids(LENGTH, DIM))
    for number in range(LAYERS):
        layer = formulas.layer if norm == "post" else formulas.pre_norm_layer
        h = layer(f"layers.{number}", h, causal)
    if norm == "pre":
        h = formulas.norm("final_norm", h)
    torch.testing.assert_close(model.hidden(TOKENS), formulas.drop(h), rtol=1e-10, atol=1e-10)
    assert dropped == [DROPOUT] * (2 + 3 * LAYERS)


@RECIPES
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_encoder_decoder(norm, recipe, training, dropped):
    """Dropout after the embeddings, after every attention and twice in every feed-forward part."""
    config = Seq2SeqConfig(**SHAPE, source_length=LENGTH, target_length=LENGTH, norm=norm, **recipe)
    model = EncoderDecoder(config, V, dict.fromkeys(("encoder", "decoder", "cross"), SOFTMAX))
    formulas = Formulas(whole(model, training), training)
    positions = reversed_sinusoids(LENGTH, DIM).flip(0)
    memory, h = formulas.embedded(TOKENS, positions), formulas.embedded(ANSWER, positions[: ANSWER.shape[1]])
    layer = formulas.layer if norm == "post" else formulas.pre_norm_layer
    for number in range(LAYERS):
        memory = layer(f"encoder.{number}", memory, causal=False)
    if norm == "pre":
        memory = formulas.norm("encoder_norm", memory)
    for number in range(LAYERS):
        h = layer(f"decoder.{number}", h, causal=True, memory=memory)
    if norm == "pre":
        h = formulas.norm("decoder_norm", h)
    expected = h @ formulas.weights["embedding.weight"].T + formulas.weights["output_bias"]
    keep = torch.ones_like(TOKENS, dtype=torch.bool)
    found = model.logits(ANSWER, model.encode(TOKENS, keep), keep)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert dropped == [DROPOUT] * (2 + (3 + 4) * LAYERS)
