"""Residual attention scores: the logits of every layer are a sum over the layers below."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.switches import Carry
from fourierformer.models.config import LMConfig
from fourierformer.models.lm import WordLM
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, tokens


def three_layers(causal: bool) -> list[attention.Attention]:
    torch.manual_seed(0)
    layers = [attention.build("residual_scores", Geometry(16, 2, 9, causal, layer=i)).double() for i in range(3)]
    for layer in layers:
        torch.nn.init.normal_(layer.qkv.weight, std=0.4)
    return layers


@BOTH
def test_every_layer_adds_the_logits_of_all_layers_below(causal):
    layers, inputs, carry = three_layers(causal), [tokens(9, batch=1, seed=i) for i in range(3)], Carry()
    outputs = [layer(x, carry=carry) for layer, x in zip(layers, inputs, strict=True)]
    projections = [layer.project(x) for layer, x in zip(layers, inputs, strict=True)]
    for number, (layer, y) in enumerate(zip(layers, outputs, strict=True)):
        for i in range(9):
            seen, heads = i + 1 if causal else 9, []
            for h in range(2):
                logits = sum(k[0, h, :seen] @ q[0, h, i] / 8**0.5 for q, k, _ in projections[: number + 1])
                heads.append(logits.softmax(0) @ projections[number][2][0, h, :seen])
            torch.testing.assert_close(y[0, i], layer.proj(torch.cat(heads)), **EXACT)


@BOTH
def test_the_first_layer_is_softmax(causal):
    layer, softmax, x = layer_of("residual_scores", causal), layer_of("softmax", causal), tokens(9)
    softmax.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), softmax(x), **EXACT)


@BOTH
def test_padding_in_all_layers_is_as_if_it_were_not_there(causal):
    layers, x, keep = three_layers(causal), tokens(9, batch=1), torch.tensor([[1, 1, 0, 1, 1, 0, 1, 1, 1]]).bool()
    padded, removed = Carry(), Carry()
    for layer in layers:
        expected = layer(x[:, keep[0]], carry=removed)
        torch.testing.assert_close(layer(x, keep=keep, carry=padded)[:, keep[0]], expected, **EXACT)


def test_a_later_layer_is_not_called_without_the_carry():
    with pytest.raises(ValueError, match="give every layer of a forward pass the same carry"):
        three_layers(True)[1](tokens(9))


def test_a_language_model_computes_the_last_positions_alone_and_compiled_by_layer():
    torch.manual_seed(0)
    shape = {"name": "t", "layers": 3, "dim": 32, "heads": 4, "inner": 16, "dropout": 0.0, "length": 12}
    lm = WordLM(LMConfig(**shape), 50, [], partial(attention.build, "residual_scores")).double().eval()
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    words = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    hidden = lm.hidden(words)
    torch.testing.assert_close(lm.hidden(words, last=3), hidden[:, -3:], **EXACT)
    lm.compile_blocks(backend="eager")
    for _ in range(2):
        torch.testing.assert_close(lm.hidden(words), hidden, **EXACT)
