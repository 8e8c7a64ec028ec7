"""fourierformer.FourierAttention: the layer for other people's models."""

import math
import re

import pytest
import torch

from fourierformer import FourierAttention
from fourierformer.errors import SetupError
from fourierformer.marks import marks_of


def formula(layer, query, key, value, allowed):
    """Heads one after the other, by the printed formula: query head h has the keys of group h * groups // heads."""
    q, k, v = layer.q_proj(query), layer.k_proj(key), layer.v_proj(value)
    width, heads = layer.width, query.shape[-1] // layer.width
    groups, outputs = k.shape[-1] // width, []
    for h in range(heads):
        own, shared = slice(h * width, (h + 1) * width), slice(*[(h * groups // heads + e) * width for e in (0, 1)])
        z = layer.radius * (q[:, :, None, own] - k[:, None, :, shared])
        weights = (torch.sin(z) / z).prod(-1) ** layer.power * allowed
        outputs.append((weights @ v[..., shared]) / (layer.eps + weights.sum(-1, keepdim=True)))
    return layer.out_proj(torch.cat(outputs, -1))


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_it_is_the_formula_with_projections_masks_and_shared_heads(kv_heads):
    torch.manual_seed(0)
    layer = FourierAttention(8, 4, kv_heads=kv_heads, eps=1e-3).double()
    query, memory = torch.randn(2, 5, 8).double(), torch.randn(2, 6, 8).double()
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    pairs = torch.rand(5, 6) > 0.3
    exact = formula(layer, query, memory, memory, keep[:, None] & pairs)
    torch.testing.assert_close(layer(query, memory, keep=keep, attn_mask=pairs), exact)
    values = torch.randn_like(memory)
    torch.testing.assert_close(layer(query, memory, values), formula(layer, query, memory, values, 1.0))
    causal = FourierAttention(8, 4, kv_heads=kv_heads, eps=1e-3, causal=True).double()
    causal.load_state_dict(layer.state_dict())
    # with itself, z is 0 on the diagonal, where the printed quotient is 0 / 0
    shifted = query + 1e-9 * torch.randn_like(query)
    torch.testing.assert_close(
        causal(shifted, query), formula(layer, shifted, query, query, torch.ones(5, 5).tril()), atol=1e-6, rtol=0
    )


def test_it_starts_as_sharp_as_softmax():
    """Near 0, sinc(x)^p = exp(-p x^2 / 6): with R = sqrt(3 / (p sqrt(D))) the weight exp(q k / sqrt(D)), up to factors
    of q alone and k alone."""
    layer = FourierAttention(64, 4, power=6)
    assert layer.radius.item() == pytest.approx(math.sqrt(3 / (6 * math.sqrt(16))))
    assert FourierAttention(64, 4, radius=1.5, radius_shape="head").radius.tolist() == [[1.5]] * 4


def test_a_layer_made_without_memory_gets_its_radius_where_torch_resets_parameters():
    with torch.device("meta"):
        layer = FourierAttention(8, 4, radius=1.5, radius_shape="head")
    layer.to_empty(device="cpu")
    for module in layer.modules():
        module.reset_parameters()
    assert layer.radius.tolist() == [[1.5]] * 4


@pytest.mark.parametrize(("shape", "size"), [("scalar", ()), ("head", (4, 1)), ("coordinate", (1, 2))])
def test_a_radius_has_its_shape_and_does_not_decay(shape, size):
    layer = FourierAttention(8, 4, radius_shape=shape)
    assert layer.radius.shape == size
    assert [name for name, mark in marks_of(layer).items() if mark.no_weight_decay] == ["radius"]


def test_it_learns_and_drops_out_in_training_only():
    torch.manual_seed(0)
    layer = FourierAttention(8, 2, dropout=0.5, radius_shape="coordinate")
    x = torch.randn(3, 6, 8)
    assert not torch.equal(layer(x), layer(x))
    assert not FourierAttention(8, 2, dropout=1.0, bias=False)(x).any()  # no weight is left
    layer(x).square().sum().backward()
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in layer.parameters())
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


def test_it_computes_with_the_backend_that_it_is_given():
    """This one refuses float64, in whose place `auto` takes another."""
    x = torch.randn(1, 3, 8).double()
    with pytest.raises(ValueError, match="'fused' cannot run here: it computes in float32"):
        FourierAttention(8, 2, backend="fused").double()(x)
    assert FourierAttention(8, 2).double()(x).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim 10 is not divisible by heads 4"),
        ({"dim": 8, "heads": 4, "kv_heads": 3}, "heads 4 is not divisible by kv_heads 3"),
        ({"dim": 8, "heads": 4, "dropout": 2}, "dropout is a probability"),
        ({"dim": 8, "heads": 4, "radius_shape": "vector"}, "radius_shape is 'scalar', 'head' or 'coordinate'"),
        ({"dim": 8, "heads": 4, "radius": "matchd"}, "radius is a number, or 'matched', got 'matchd'"),
        ({"dim": 8, "heads": 4, "radius": math.nan}, "radius is a number, or 'matched', got nan"),
        ({"dim": 8, "heads": 4, "power": 3}, "power must be an even integer >= 2, got 3"),
        ({"dim": 8, "heads": 4, "eps": -1}, "eps must be a finite number >= 0, got -1"),
        ({"dim": 8, "heads": 4, "backend": "cuda"}, "unknown Fourier attention backend 'cuda'"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises((SetupError, ValueError), match=message):
        FourierAttention(**arguments)


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 6), (2, 4, 5, 8)])
def test_inputs_of_another_shape_are_named_as_they_were_given(shape):
    layer, x, wrong = FourierAttention(8, 4), torch.zeros(2, 5, 8), torch.zeros(shape)
    for name, inputs in {"query": (wrong,), "key": (x, wrong), "value": (x, x, wrong)}.items():
        with pytest.raises(ValueError, match=re.escape(f"{name} must be (batch, tokens, dim = 8), got {shape}")):
            layer(*inputs)
