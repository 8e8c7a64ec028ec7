"""NeuTRENO's switch: a multiple of (values of the first layer - own values) is added to the mixture of later layers."""

from functools import partial

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Attention, Geometry
from fourierformer.attention.base import layers_of, new_carry
from fourierformer.attention.switches import Carry
from fourierformer.errors import SetupError
from fourierformer.models.config import LMConfig, Seq2SeqConfig, ViTConfig
from fourierformer.models.lm import WordLM
from fourierformer.models.seq2seq import EncoderDecoder
from fourierformer.models.vit import build_vit
from tests.helpers.mechanisms import CHOICES

EXACT = {"rtol": 1e-9, "atol": 1e-9}
FACTOR = 0.4
TEXT = {"name": "t", "layers": 3, "dim": 32, "heads": 4, "inner": 16, "dropout": 0.0}


def two_layers(name: str, causal: bool = True, factor: float = FACTOR) -> list[Attention]:
    torch.manual_seed(0)
    grid = (8, 4) if attention.mechanism(name).needs_grid else None
    layers = []
    for number in range(2):
        geometry = Geometry(32, 4, 33, causal, True, grid, int(grid is not None), number, value_residual=factor)
        layers.append(attention.build(name, geometry).double().eval())
    return layers


def tokens(n: int = 33, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, n, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("name", "causal"), [choice for choice in CHOICES if choice[0] != "hybrid"])
def test_a_later_layer_adds_the_difference_of_values_at_the_position_of_the_query(name, causal):
    layers, inputs = two_layers(name, causal), (tokens(), tokens(seed=2))
    carry = new_carry(layers[0])
    first, second = (layer(x, carry=carry) for layer, x in zip(layers, inputs, strict=True))
    values = [layer.project(x)[2] for layer, x in zip(layers, inputs, strict=True)]
    without, carry = two_layers(name, causal, 0.0), Carry()
    alone, plain = (layer(x, carry=carry) for layer, x in zip(without, inputs, strict=True))
    torch.testing.assert_close(first, alone, rtol=0, atol=0)
    added = (FACTOR * (values[0] - values[1])).transpose(1, 2).flatten(-2)
    proj = layers[1].proj
    torch.testing.assert_close(second, plain + proj(added) - proj(torch.zeros_like(added)), **EXACT)
    again = Carry()
    layers[0](inputs[0], carry=again)
    torch.testing.assert_close(layers[1](inputs[1], last=4, carry=again), second[:, -4:], **EXACT)


def test_equal_values_add_nothing():
    layers, x = two_layers("softmax"), tokens()
    carry = Carry(layers[1].project(x)[2])
    torch.testing.assert_close(layers[1](x, carry=carry), two_layers("softmax", factor=0.0)[1](x), **EXACT)


def test_attention_to_another_sequence_neither_adds_nor_keeps_values():
    layers, x = two_layers("softmax"), tokens()
    carry, plain = Carry(), two_layers("softmax", factor=0.0)[0]
    assert torch.equal(layers[0](x, tokens(12), carry=carry), plain(x, tokens(12)))
    assert carry.first_values is None


def test_a_layer_that_needs_them_is_not_called_without():
    with pytest.raises(ValueError, match="needs values of the first one"):
        two_layers("softmax")[0](tokens())
    assert new_carry(two_layers("softmax", factor=0.0)[0]) is None


def in_float64(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def language(factor: float = FACTOR, name: str = "taylor") -> WordLM:
    torch.manual_seed(0)
    config = LMConfig(**TEXT, length=12, value_residual=factor)
    return in_float64(WordLM(config, 50, [], partial(attention.build, name)))


WORDS = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))


def test_language_models_step_by_step_and_compiled_by_layer_compute_what_forward_does():
    lm = language()
    hidden, states = lm.hidden(WORDS), lm.start(3)
    for i in range(12):
        log_p, states = lm.step(WORDS[:, i], i, states)
        torch.testing.assert_close(log_p, lm.output.log_probabilities(hidden[:, i], lm.embedding.weight), **EXACT)
    torch.testing.assert_close(lm.hidden(WORDS, last=3), hidden[:, -3:], **EXACT)
    lm.compile_blocks(backend="eager")
    for _ in range(2):
        torch.testing.assert_close(lm.hidden(WORDS), hidden, **EXACT)


def test_the_first_layers_values_have_a_gradient_through_the_last_layer():
    """Without a path through its mixture: the outputs of its projection are 0."""
    for factor, flows in ((0.0, False), (FACTOR, True)):
        lm = language(factor)
        torch.nn.init.zeros_(lm.layers[0].attention.proj.weight)
        lm.hidden(WORDS).square().sum().backward()
        assert lm.layers[0].attention.qkv.weight.grad[64:].any() == flows


def test_encoder_and_decoder_have_first_layers_of_their_own():
    torch.manual_seed(0)
    config = Seq2SeqConfig(**TEXT, source_length=12, target_length=12, value_residual=FACTOR)
    parts = {"encoder": "softmax", "decoder": "taylor", "cross": "softmax"}
    model = in_float64(EncoderDecoder(config, 50, {part: partial(attention.build, n) for part, n in parts.items()}))
    keep = torch.ones(3, 12, dtype=torch.bool)
    memory = model.encode(WORDS, keep)
    logits, states = model.logits(WORDS[:, :7], memory, keep), model.start(3)
    for i in range(7):
        found, states = model.step(WORDS[:, i], i, memory, keep, states)
        torch.testing.assert_close(found, logits[:, i], **EXACT)
    seen = []
    for layer in layers_of(model):
        layer.register_forward_pre_hook(lambda _, __, options: seen.append(options.get("carry")), with_kwargs=True)
    model.logits(WORDS[:, :7], model.encode(WORDS, keep), keep)
    of_encoder, of_decoder, of_cross = set(map(id, seen[:3])), set(map(id, seen[3::2])), seen[4::2]
    assert len(of_encoder) == len(of_decoder) == 1
    assert of_encoder != of_decoder
    assert of_cross == [None] * 3


def test_images_are_classified_with_it():
    torch.manual_seed(0)
    shape = {"name": "t", "image_size": 8, "patch": 4, "dim": 32, "heads": 4, "mlp_ratio": 1.0, "drop_path": 0.0}
    config = ViTConfig(**shape, depth=2, value_residual=0.6)
    model, images = in_float64(build_vit(config, 10, partial(attention.build, "softmax"))), torch.randn(2, 3, 8, 8)
    inputs, merged = [], []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
        block.attn.proj.register_forward_pre_hook(lambda _, x: merged.append(x[0]))
    model(images.double())
    first, second = (block.attn for block in model.blocks)
    q, k, v = second.project(inputs[1])
    expected = second.mix(q, k, v, inputs[1]) + 0.6 * (first.project(inputs[0])[2] - v)
    torch.testing.assert_close(merged[1], expected.transpose(1, 2).flatten(-2), **EXACT)


def test_a_negative_multiple_is_refused():
    with pytest.raises(SetupError, match=r"model\.value_residual"):
        LMConfig(**TEXT, length=12, value_residual=-0.1)
