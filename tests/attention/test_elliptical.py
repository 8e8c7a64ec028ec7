"""Elliptical attention: a metric per coordinate from the change of the values since the layer below."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.switches import Carry
from fourierformer.models.config import LMConfig
from fourierformer.models.lm import WordLM
from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, projected, tokens

KERNELS = pytest.mark.parametrize("kernel", ["dot", "gaussian"])


def values(n: int = 7, heads: int = 2, seed: int = 5) -> torch.Tensor:
    return torch.randn(1, heads, n, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@BOTH
@KERNELS
def test_every_query_has_the_metric_of_the_keys_that_it_sees(kernel, causal):
    layer, x, below = layer_of("elliptical", causal, kernel=kernel), tokens(7, batch=1), values()
    q, k, v = layer.project(x)
    for last in (7, 2):
        mixed = layer.mix(q[:, :, -last:], k, v, x, below=below)
        for h in range(2):
            for i in range(7 - last, 7):
                seen = i + 1 if causal else 7
                change = [sum(abs(v[0, h, j, d] - below[0, h, j, d]) for j in range(seen)) / seen for d in range(8)]
                logits = []
                for j in range(seen):
                    a, b = q[0, h, i], k[0, h, j]
                    pairs = [a[d] * b[d] if kernel == "dot" else -((a[d] - b[d]) ** 2) / 2 for d in range(8)]
                    logits.append(sum(c / max(change) * pair for c, pair in zip(change, pairs, strict=True)) / 8**0.5)
                expected = torch.stack(logits).softmax(0) @ v[0, h, :seen]
                torch.testing.assert_close(mixed[0, h, i - (7 - last)], expected, **EXACT)


@BOTH
@pytest.mark.parametrize(("kernel", "peer"), [("dot", "softmax"), ("gaussian", "gaussian")])
def test_the_first_layer_and_equal_changes_of_all_coordinates_are_softmax_or_gaussian(kernel, peer, causal):
    layer, x = layer_of("elliptical", causal, kernel=kernel), tokens(7, batch=1)
    plain = layer_of(peer, causal)
    plain.load_state_dict(layer.state_dict())
    q, k, v, first = projected(layer, x)
    expected = plain.mix(q, k, v, x)
    torch.testing.assert_close(first, expected, **EXACT)
    for change in (0.3, 0.0):
        torch.testing.assert_close(layer.mix(q, k, v, x, below=v + change), expected, **EXACT)


@BOTH
def test_the_metric_is_at_most_1_and_its_unit_does_not_matter(causal):
    layer, v = layer_of("elliptical", causal), values()
    metric = layer.metric(v, values(seed=6))
    assert metric.min() >= 0
    torch.testing.assert_close(metric.amax(-1), torch.ones_like(metric[..., 0]), **EXACT)
    torch.testing.assert_close(layer.metric(5 * v, 5 * values(seed=6)), metric, **EXACT)


@BOTH
def test_padding_does_not_enter_the_metric(causal):
    """5 tokens, then two of padding."""
    layer, x, below = layer_of("elliptical", causal), tokens(7, batch=1), values()
    keep = torch.arange(7)[None] < 5
    q, k, v = layer.project(x)
    cut = layer.mix(q[:, :, :5], k[:, :, :5], v[:, :, :5], x[:, :5], below=below[:, :, :5])
    torch.testing.assert_close(layer.mix(q, k, v, x, keep=keep, below=below)[:, :, :5], cut, **EXACT)


@KERNELS
@pytest.mark.parametrize("training", [True, False])
def test_no_token_of_a_model_sees_later_ones(kernel, training):
    """The mean over the whole sequence, which the released language model has, would show them."""
    torch.manual_seed(0)
    config = LMConfig(name="t", layers=3, dim=32, heads=4, inner=16, length=12, dropout=0.0)
    lm = WordLM(config, 50, [], partial(attention.build, "elliptical", kernel=kernel)).double().train(training)
    for parameter in lm.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    words = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))
    other = torch.cat([words[:, :7], (words[:, 7:] + 1) % 50], dim=1)
    torch.testing.assert_close(lm.hidden(other)[:, :7], lm.hidden(words)[:, :7], **EXACT)
    assert not torch.allclose(lm.hidden(other)[:, 7:], lm.hidden(words)[:, 7:])
    torch.testing.assert_close(lm.hidden(words, last=4), lm.hidden(words)[:, -4:], **EXACT)


def test_a_layer_reads_the_values_of_the_one_below_and_leaves_its_own():
    layers = [layer_of("elliptical", True) for _ in range(2)]
    inputs, carry = (tokens(7), 3 * tokens(7, seed=2)), Carry()
    torch.nn.init.normal_(layers[0].qkv.weight)
    outputs = [layer(x, carry=carry) for layer, x in zip(layers, inputs, strict=True)]
    q, k, v = layers[1].project(inputs[1])
    mixed = layers[1].mix(q, k, v, inputs[1], below=layers[0].project(inputs[0])[2])
    torch.testing.assert_close(outputs[1], layers[1].proj(mixed.transpose(1, 2).flatten(-2)), **EXACT)
    assert torch.equal(carry.values_below, v)
    assert not torch.allclose(outputs[1], layers[1](inputs[1]))


@BOTH
@pytest.mark.parametrize("offset", [0.0, 32.0])
def test_in_bfloat16_distances_keep_the_digits_of_float32(causal, offset):
    """Far from the origin q k and k^2 are a thousand and cancel. What is left is the rounding of the output."""
    layer, x = layer_of("elliptical", causal, kernel="gaussian"), tokens(7, batch=1)
    q, k, v, below = (
        part.bfloat16() for part in (values(seed=1) + offset, values(seed=2) + offset, values(), values(seed=6))
    )
    exact = layer.mix(q.double(), k.double(), v.double(), x, below=below.double())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer.mix(q, k, v, x, below=below)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.double(), exact, rtol=2**-8, atol=1e-4)


def test_a_later_layer_is_not_called_without_them():
    layer = attention.build("elliptical", Geometry(16, 2, 7, True, layer=1)).double()
    with pytest.raises(
        ValueError, match=r"needs values of the one below: give every layer .* carry=new_carry\(layer\)"
    ):
        layer(tokens(7))


def test_the_metric_has_no_gradient():
    layer, x, below = layer_of("elliptical", True), tokens(7, batch=1), values().requires_grad_()
    q, k, v = layer.project(x)
    layer.mix(q, k, v, x, below=below).sum().backward()
    assert below.grad is None


def test_decoding_keeps_keys_values_and_the_sums_of_changes():
    assert layer_of("elliptical", True).state_size(40) == 2 * 40 * 16 + 16
