"""Tiles give what masks give, forward and backward, with fewer weights; token by token gives what forward gives."""

import copy
import math
import multiprocessing
import pickle
import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask, flex_attention

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines import flex, tiles
from fourierformer.attention.engines.tiles import groups_of
from fourierformer.attention.mechanisms import sparse
from tests.helpers.one_by_one import one_by_one
from tests.helpers.sparse_cases import CHOICES, build, mask_of, tokens

TOKENS, GRID = 150, (10, 15)
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def results(layer, x, **options) -> list[torch.Tensor]:
    """Output and gradients. Of a query without keys the output is what `proj` makes of 0."""
    x = x.clone().requires_grad_()
    y = layer(x, **options)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_tiles_give_what_masks_give(name, causal, prefix, monkeypatch):
    """All queries, the last ones only, and with padding: at the start too, so that some see no key."""
    monkeypatch.setattr(tiles, "LISTED", 1000)  # tiles are made in several parts
    layer, x = build(name, causal, prefix, TOKENS, GRID), tokens(TOKENS + prefix)
    keep = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(3)) < 0.4
    keep[1, :20] = False
    choices = [{}, {"last": 7}, {"keep": keep}]
    expected = [results(layer, x, **options) for options in choices]
    monkeypatch.setattr(sparse, "DENSE", 16)
    monkeypatch.setattr(layer, "_mask", None)
    for options, values in zip(choices, expected, strict=True):
        for ours, theirs in zip(results(layer, x, **options), values, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_shorter_input_in_tiles(name, causal, monkeypatch):
    monkeypatch.setattr(sparse, "DENSE", 16)
    layer, x = build(name, causal, 1, TOKENS, GRID), tokens(70)
    slots = layer.slots
    mask = torch.nn.functional.pad(mask_of(layer, 70), (slots, 0), value=True)
    q, k, v = layer.project(x)
    if slots:
        k, v = (torch.cat([s.expand(2, -1, -1, -1), t], 2) for s, t in ((layer.slot_keys, k), (layer.slot_values, v)))
    weights = (q @ k.mT / 2).masked_fill(~mask, -math.inf).softmax(-1)
    torch.testing.assert_close(layer(x), layer.proj((weights @ v).transpose(1, 2).flatten(2)), **EXACT)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_lengths_up_to_a_multiple_of_128_share_their_tiles(name, causal, monkeypatch):
    layer, made = build(name, causal, 1, TOKENS, GRID), []
    inputs = [tokens(n) for n in (40, 60, 128 - layer.slots)]
    expected = [results(layer, x) for x in inputs]
    monkeypatch.setattr(sparse, "DENSE", 16)
    keep_made = layer._made
    monkeypatch.setattr(layer, "_made", lambda key, make: keep_made(key, lambda: made.append(key) or make()))
    for x, values in zip(inputs, expected, strict=True):
        for ours, theirs in zip(results(layer, x), values, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)
    assert len(made) == 1


LINEAR = (
    "global",
    "band",
    "dilated",
    "random",
    "block_local",
    "star",
    "longformer",
    "etc",
    "bigbird",
    "image_1d",
)
GROWTH = dict.fromkeys(LINEAR, 1.2) | dict.fromkeys(("axial", "sparse_strided", "sparse_fixed"), 1.6)


@pytest.mark.parametrize("name", GROWTH)
def test_weights_in_tiles_grow_with_the_visible_keys(name):
    """With the default knobs, from 2,048 to 8,192 tokens: at most N^1.2, N^1.6 for two patterns of sqrt(N) keys."""

    def weights(n: int) -> int:
        layer = build_default(name, n)
        groups = groups_of(layer.visibility, n + layer.slots, n, torch.device("cpu"))
        return sum((g.heads.stop - g.heads.start) * t.mask.numel() for g in groups for t in g.tiles)

    short, long = weights(2048), weights(8192)
    assert math.log(long / short, 4) <= GROWTH[name]
    assert short < 4 * 2048**2 / 4  # of four heads


def build_default(name: str, n: int) -> attention.Attention:
    columns = 2 ** (n.bit_length() // 2)
    geometry = Geometry(dim=8, heads=4, length=n, causal=False, grid=(n // columns, columns))
    return attention.build(name, geometry)


def axial_by_reshaping(layer: attention.Attention, x: torch.Tensor) -> torch.Tensor:
    """Two one-dimensional attentions over a reshaped grid, without masks."""
    grid = [t.unflatten(2, GRID) for t in layer.project(x)]
    rows = [t[:, :2] for t in grid]
    columns = [t[:, 2:].transpose(2, 3) for t in grid]
    mixed = [torch.nn.functional.scaled_dot_product_attention(*part) for part in (rows, columns)]
    return layer.proj(torch.cat([mixed[0], mixed[1].transpose(2, 3)], 1).flatten(2, 3).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dense", [16, 512], ids=["tiles", "masked"])
def test_axial_is_attention_over_rows_and_over_columns(dense, monkeypatch):
    monkeypatch.setattr(sparse, "DENSE", dense)
    layer, x = build("axial", False, 0, TOKENS, GRID), tokens(TOKENS)
    torch.testing.assert_close(layer(x), axial_by_reshaping(layer, x), **EXACT)


@pytest.mark.parametrize("dense", [16, 512], ids=["tiles", "masked"])
def test_what_an_evaluation_has_made_serves_training(dense, monkeypatch):
    monkeypatch.setattr(sparse, "DENSE", dense)
    layer, x = build("bigbird", True, 0, TOKENS), tokens(TOKENS)
    with torch.inference_mode():
        evaluated = layer(x)
    output, *gradients = results(layer, x)
    torch.testing.assert_close(output, evaluated, **EXACT)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


# -- flex_attention ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_block_masks_are_the_pattern_and_visit_all_of_it(name, causal, monkeypatch):
    """Of blocks of 8, for all queries and for the last 13: their own rule is the mask, and what a block that is not
    visited holds is not seen. Most are not visited."""
    monkeypatch.setattr(flex, "BLOCK", 8)
    layer = build(name, causal, 1, 63, (7, 9))
    keys = torch.arange(64 + layer.slots)
    for queries in (64, 13):
        found = flex.block_mask(layer.visibility, len(keys), queries, torch.device("cpu"))
        seen = layer.visibility.mask(keys[-queries:], keys, len(keys)).expand(4, -1, -1)
        assert torch.equal(create_mask(found.mask_mod, 1, 4, queries, len(keys), device="cpu")[0], seen)
        visited = found.to_dense()[0].bool().repeat_interleave(8, 1).repeat_interleave(8, 2)
        assert not (seen & ~visited[:, :queries, : len(keys)]).any()
        if name != "random":
            assert visited.float().mean() < 0.99


@pytest.fixture
def through_flex(monkeypatch):
    """Layers take the way of a GPU."""
    monkeypatch.setattr(sparse, "DENSE", 16)
    monkeypatch.setattr(sparse, "flex_fits", lambda *_: True)


def test_a_layer_is_pickled_after_a_forward_pass(through_flex, monkeypatch):
    monkeypatch.setattr(flex, "_compiled_flex_attention", lambda: flex_attention)
    layer, x = build("bigbird", True, 0, TOKENS), tokens(TOKENS)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        expected = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(other(x), expected, rtol=0, atol=0)


def test_inputs_of_many_lengths_are_not_compiled_one_by_one(through_flex, monkeypatch):
    """A text that grows token by token, of a mechanism without a state: only the whole window takes flex_attention."""
    lengths = []
    monkeypatch.setattr(sparse, "blockwise_attention", lambda q, k, v, mask: lengths.append(k.shape[2]) or v)
    layer = build("bigbird", True, 0, TOKENS)
    for n in (TOKENS - 2, TOKENS - 1, TOKENS):
        layer(tokens(n))
    assert lengths == [TOKENS]


@pytest.mark.filterwarnings("error")
def test_flex_attention_in_a_compiled_layer(through_flex, monkeypatch):
    """As when a model is trained on a GPU: it is part of the compiled code, without a warning of torch."""
    monkeypatch.setattr(torch._dynamo.utils, "warn_once_cache", set())
    layer, x = build("band", True, 0, TOKENS), tokens(TOKENS)
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad():
        found = compiled(x)
        monkeypatch.setattr(sparse, "flex_fits", lambda *_: False)
        torch.testing.assert_close(found, layer(x), **EXACT)


@pytest.mark.full("compiles two kernels for the CPU, half a minute each")
@pytest.mark.parametrize("name", ["etc", "bigbird"])
def test_compiled_flex_attention_gives_what_masks_give(name, through_flex, monkeypatch):
    """Forward: torch has no backward of it for a CPU."""

    def compare():
        torch.set_num_threads(1)  # threads of OpenMP do not survive a fork: two would be waited for without end
        layer, x = build(name, True, 0, 600).float(), tokens(600).float()
        with torch.no_grad():
            compiled = layer(x)
            monkeypatch.setattr(sparse, "flex_fits", lambda *_: False)
            torch.testing.assert_close(compiled, layer(x), rtol=1e-4, atol=1e-5)

    # The compiler starts threads of autograd, and a process that has them cannot fork the tests of several processes.
    child = multiprocessing.get_context("fork").Process(target=compare)
    child.start()
    child.join()
    assert child.exitcode == 0


# heads of longformer see every second key of their window, tokens of random and axial keys far apart
ON_A_GPU = dict.fromkeys(("band", "etc", "bigbird", "image_1d"), "flex_attention")
ON_A_GPU |= dict.fromkeys(("longformer", "axial", "random"), "tiles")
LONG = Geometry(dim=64, heads=4, length=1024, causal=False, grid=(32, 32))


@pytest.mark.parametrize("name", ON_A_GPU)
def test_flex_attention_is_for_queries_that_share_keys_with_their_neighbours(name):
    layer = attention.build(name, LONG)
    assert layer.backend_name(torch.device("cuda")) == ON_A_GPU[name]
    assert layer.backend_name(torch.device("cpu")) == "tiles"


@pytest.mark.parametrize(
    ("device", "dtype", "width", "fits"),
    [
        ("cuda", torch.float32, 16, True),
        ("cuda", torch.bfloat16, 64, True),
        ("cuda", torch.float64, 16, False),
        ("cuda", torch.float32, 8, False),
        ("cpu", torch.float32, 16, False),
    ],
)
def test_flex_attention_is_for_the_precisions_and_widths_of_its_kernels(device, dtype, width, fits):
    visibility = attention.build("band", LONG).visibility
    assert flex.flex_fits(visibility, width, torch.device(device), dtype) == fits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_the_result_and_its_gradients_are_those_of_a_cpu(name):
    layer, x = attention.build(name, LONG), torch.randn(2, 1024, 64, generator=torch.Generator().manual_seed(0))
    expected = results(layer, x)
    found = results(layer.cuda(), x.cuda())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)


# -- token by token ----------------------------------------------------------------------------------------------------

BOUNDED = ["global", "band", "dilated", "block_local", "star", "longformer", "etc", "image_1d"]


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("name", BOUNDED)
def test_decoding_gives_what_forward_gives(name, prefix):
    layer, x = build(name, True, prefix, length=30), tokens(30 + prefix)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


def test_decoding_with_a_window_longer_than_the_input():
    layer, x = build("band", True, length=30, window=99), tokens(30)
    torch.testing.assert_close(one_by_one(layer, x), layer(x), **EXACT)


@pytest.mark.parametrize("name", [n for n, causal in CHOICES if causal and not attention.mechanism(n).needs_grid])
def test_who_has_a_state_of_constant_size(name):
    """As many keys as a token can see of the past; none where a key may be as far away as one likes."""
    layer = build(name, True, length=5000)
    state = layer.start(batch=1)
    assert (state is not None) == (name in BOUNDED)
    if state is not None:
        assert state[1].shape[2] <= 12
        assert build(name, False).start(batch=1) is None
