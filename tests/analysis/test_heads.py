"""Head redundancy: known maps have known distances and ranks, a layer's are those of an explicit formula."""

import gc
import itertools
import math
import statistics

import numpy as np
import pytest
import torch
from torch import nn

from fourierformer import attention
from fourierformer.analysis import heads
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError, UserError

LENGTH, DIM, HEADS = 12, 24, 3


def pair(*maps: torch.Tensor) -> torch.Tensor:
    """(1, H, N, N), the maps of one sequence."""
    return torch.stack(maps)[None]


def measured(maps: torch.Tensor) -> dict[str, float]:
    return {name: value.item() for name, value in heads.distances(maps, maps).items()}


def uniform(length: int, causal: bool) -> torch.Tensor:
    visible = torch.ones(length, length)
    visible = visible.tril() if causal else visible
    return visible / visible.sum(-1, keepdim=True)


def stack(name: str, causal: bool, layers: int = 2, **knobs) -> nn.Sequential:
    torch.manual_seed(0)
    geometry = Geometry(dim=DIM, heads=HEADS, length=LENGTH, causal=causal, bias=True)
    return nn.Sequential(*(attention.build(name, geometry, **knobs) for _ in range(layers)))


def sequences(count: int) -> torch.Tensor:
    return 3 * torch.randn(count, LENGTH, DIM, generator=torch.Generator().manual_seed(1))


def test_identity_and_full_uniform_maps_are_sqrt_of_length_less_one_apart():
    """Each row: (1 - 1/L)^2 + (L - 1) / L^2 = 1 - 1/L."""
    distances = measured(pair(torch.eye(256), uniform(256, causal=False)))
    assert distances["head_distance"] == pytest.approx(math.sqrt(255), rel=1e-6)
    assert distances["row_distance"] == pytest.approx(math.sqrt(1 - 1 / 256), rel=1e-6)


def test_identity_and_causal_uniform_maps():
    """Row i of i visible keys: 1 - 1/i, so the square is 256 - (1 + 1/2 + ... + 1/256)."""
    distances = measured(pair(torch.eye(256), uniform(256, causal=True)))
    assert distances["head_distance"] == pytest.approx(math.sqrt(256 - sum(1 / i for i in range(1, 257))), rel=1e-6)
    assert round(distances["head_distance"], 1) == 15.8


def test_no_two_maps_are_further_apart_than_disjoint_permutations():
    distances = measured(pair(torch.eye(256), torch.eye(256).roll(1, dims=1)))
    assert distances["head_distance"] == pytest.approx(math.sqrt(2 * 256), rel=1e-6)
    assert round(distances["head_distance"], 1) == 22.6
    assert distances["row_distance"] == pytest.approx(math.sqrt(2), rel=1e-6)
    rough = (20 * torch.randn(1, 4, 256, 256, generator=torch.Generator().manual_seed(0))).softmax(-1)
    assert 20 < measured(rough)["head_distance"] < 22.6


def test_equal_heads_are_at_distance_nought_exactly():
    maps = uniform(32, causal=True).expand(2, 4, 32, 32)
    assert all((value == 0).all() for value in heads.distances(maps, maps).values())


def test_three_heads_have_three_pairs():
    """Only the third head differs: two of three pairs."""
    maps = pair(torch.eye(9), torch.eye(9), uniform(9, causal=False))
    assert measured(maps)["head_distance"] == pytest.approx(2 / 3 * math.sqrt(8))


def test_rank_is_bounded_by_the_features():
    """Linear attention: weights phi(q) phi(k)^T, normalised, with r features."""
    generator = torch.Generator().manual_seed(0)
    for features in (1, 4, 11):
        q, k = (torch.rand(2, 3, 40, features, generator=generator, dtype=torch.float64) for _ in range(2))
        weights = q @ k.mT
        assert heads.effective_rank(weights / weights.sum(-1, keepdim=True)).tolist() == [features] * 2


def test_rank_of_known_maps():
    known = pair(torch.eye(40), uniform(40, causal=False), uniform(40, causal=True)).double()
    assert [heads.effective_rank(known[:, i : i + 1]).item() for i in range(3)] == [40, 1, 40]  # triangular: full
    assert heads.effective_rank(known).item() == pytest.approx((40 + 1 + 40) / 3)
    assert heads.effective_rank(torch.diag(torch.tensor([1.0, 1.1e-6, 0.9e-6]))[None, None]).item() == 2


def explicit(layer: attention.Attention, x: np.ndarray, kernel: str) -> dict[str, float]:
    """One sequence, head by head and pair by pair, in numpy."""
    weight, bias = (p.detach().double().numpy() for p in (layer.qkv.weight, layer.qkv.bias))
    q, k, v = (x @ weight.T + bias).reshape(LENGTH, 3, HEADS, DIM // HEADS).transpose(1, 2, 0, 3)
    maps = []
    for h in range(HEADS):
        if kernel == "softmax":
            weights, eps = np.exp(q[h] @ k[h].T / math.sqrt(DIM // HEADS)), 0.0
        else:
            z = layer.radius.item() * (q[h][:, None] - k[h][None])
            weights, eps = (np.sinc(z / np.pi) ** 4).prod(-1), layer.eps
        if layer.geometry.causal:
            weights = np.tril(weights)
        maps.append(weights / (eps + weights.sum(1, keepdims=True)))
    pairs = list(itertools.combinations(range(HEADS), 2))
    return {
        "head_distance": np.mean([np.linalg.norm(maps[a] - maps[b]) for a, b in pairs]),
        "row_distance": np.mean([np.linalg.norm(maps[a] - maps[b], axis=1).mean() for a, b in pairs]),
        "output_distance": np.mean([np.linalg.norm(maps[a] @ v[a] - maps[b] @ v[b]) for a, b in pairs]),
        "attended_share": np.mean([a.sum(1).mean() for a in maps]),
        "rank": np.mean([np.linalg.matrix_rank(a, tol=1e-6) for a in maps]),
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "knobs"), [("softmax", {}), ("fourier", {"radius": 0.7, "eps": 1e-2})])
def test_a_layer_is_measured_as_the_explicit_formula_says(name, knobs, causal):
    layer, x = stack(name, causal, layers=1, **knobs), sequences(4)
    (sums,) = heads.measure_heads(layer, layer, [x])
    expected = [explicit(layer[0], one, name) for one in x.double().numpy()]
    for quantity, value in sums.means().items():
        assert value == pytest.approx(np.mean([layer[quantity] for layer in expected]), rel=1e-5), quantity


def test_every_layer_is_measured_on_what_it_gets():
    model, x = stack("softmax", causal=True), sequences(3)
    first, second = heads.measure_heads(model, model, [x])
    with torch.no_grad():
        inner = model[0](x)
    assert second.means() == pytest.approx(heads.measure_heads(model[1], model[1], [inner])[0].means(), rel=1e-6)
    assert first.means() != second.means()


@pytest.mark.parametrize("rank_every", [1, 3])
def test_batches_do_not_matter(rank_every):
    model, x = stack("fourier", causal=False, eps=1e-3), sequences(10)
    whole = heads.measure_heads(model, model, [x], rank_every)
    for size in (1, 4, 7):
        split = heads.measure_heads(model, model, x.split(size), rank_every)
        for one, other in zip(whole, split, strict=True):
            assert (one.sequences, one.ranked) == (other.sequences, other.ranked) == (10, math.ceil(10 / rank_every))
            assert one.means() == pytest.approx(other.means(), rel=1e-5)


def test_memory_does_not_grow_with_the_sequences():
    """As many tensors are alive when the 30th batch is asked for as at the third."""
    model, alive = stack("softmax", causal=True), []

    def batches():
        for number in range(1, 31):
            if number in (3, 30):
                alive.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
            yield sequences(2)

    seen = heads.measure_heads(model, model, batches())
    assert seen[0].sequences == 60
    assert alive[0] == alive[1] > 0


def test_the_model_is_left_as_it_was():
    model, x = stack("softmax", causal=True), sequences(2)
    heads.measure_heads(model, model, [x])
    assert not any(layer._forward_pre_hooks for layer in model)


def test_a_compiled_model_is_watched_too():
    """A GPU's runs are compiled block by block; a hook inside a compiled block would be compiled as well."""

    def never(graph, inputs):
        raise AssertionError("compiled")

    blocks, x = nn.Sequential(*(nn.Sequential(layer) for layer in stack("softmax", causal=True))), sequences(2)
    expected = [sums.means() for sums in heads.measure_heads(blocks, blocks, [x])]
    for block in blocks:
        block.compile(backend=never)
    assert [sums.means() for sums in heads.measure_heads(blocks, blocks, [x])] == expected


def test_one_head_and_no_maps_are_refused(monkeypatch):
    alone = nn.Sequential(attention.build("softmax", Geometry(dim=DIM, heads=1, length=LENGTH, causal=True)))
    with pytest.raises(SetupError, match=r"model\.heads > 1"):
        heads.measure_heads(alone, alone, [sequences(1)])
    model = stack("softmax", causal=True)
    monkeypatch.delattr(attention.mechanism("softmax"), "maps")
    with pytest.raises(SetupError, match="Softmax attention has no maps"):
        heads.measure_heads(model, model, [sequences(1)])
    with pytest.raises(SetupError, match="nothing to measure"):
        heads.measure_heads(model, model, [])


def test_mean_and_sd_over_the_layers():
    model = stack("softmax", causal=True, layers=4)
    layers = heads.measure_heads(model, model, [sequences(2)])
    numbers = heads._over_layers(layers)
    for quantity in heads.QUANTITIES:
        column = [layer[quantity] for layer in numbers["layers"]]
        assert numbers["mean"][quantity] == pytest.approx(statistics.mean(column))
        assert numbers["sd"][quantity] == pytest.approx(statistics.stdev(column))
    assert set(heads._over_layers(layers[:1])["sd"].values()) == {None}


def test_splits_are_kept_side_by_side(tmp_path):
    assert heads.saved(tmp_path) == {}
    heads.save(tmp_path, "test", {"step": 1})
    heads.save(tmp_path, "train", {"step": 1})
    heads.save(tmp_path, "test", {"step": 2})
    saved = heads.saved(tmp_path)
    assert {split: numbers["step"] for split, numbers in saved.items()} == {"test": 2, "train": 1}
    assert set(saved["test"]["origin"]) == {"commit", "command"}
    assert [path.name for path in tmp_path.iterdir()] == ["heads.json"]
    with pytest.raises(UserError, match="cannot write"):
        heads.save(tmp_path / "nowhere", "test", {})


def test_maps_that_are_not_finite_are_refused_in_words():
    model = stack("softmax", causal=True)
    with torch.no_grad():
        model[1].qkv.weight[0, 0] = math.nan
    with pytest.raises(UserError, match="its attention maps are not finite"):
        heads.measure_heads(model, model, [sequences(2)])
