"""Position patterns against rules for two numbers, published counts, two steps to everywhere, limits to softmax."""

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms import sparse
from fourierformer.attention.mechanisms.sparse import draw_others
from fourierformer.errors import SetupError
from tests.helpers.sparse_cases import CASES, CHOICES, LENGTH, NAMES, SPLIT, build, mask_of, tokens

EXACT = {"rtol": 0, "atol": 1e-12}


def by_rule(layer: attention.Attention, rule, n: int) -> torch.Tensor:
    """The first tokens see all and are seen by all, a token sees itself, and in a causal model nothing later."""
    prefix, causal = layer.geometry.prefix, layer.geometry.causal
    return torch.tensor(
        [
            [
                [
                    (i == j or min(i, j) < prefix or rule(layer, head, i - prefix, j - prefix))
                    and (j <= i or not causal)
                    for j in range(n)
                ]
                for i in range(n)
            ]
            for head in range(4)
        ]
    )


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_mask_is_its_rule(name, causal, prefix):
    """Of the longest input, and of shorter ones that end in the middle of a block."""
    layer = build(name, causal, prefix)
    for n in (1, 3, 18, LENGTH + prefix):
        assert torch.equal(mask_of(layer, n), by_rule(layer, CASES[name][1], n))


@pytest.mark.parametrize("name", SPLIT)
def test_two_patterns_in_turns_or_in_one(name):
    split, rule = SPLIT[name]
    layer = build(name, causal=False, **CASES[name][0], split=split)
    assert torch.equal(mask_of(layer, LENGTH), by_rule(layer, rule, LENGTH))


def test_of_three_heads_two_have_the_first_pattern():
    """DeiT-tiny's number of heads."""
    geometry = Geometry(24, 3, 35, False, grid=(5, 7))
    masks = mask_of(attention.build("axial", geometry), 35)
    rows, columns = (torch.arange(35) // 7, torch.arange(35) % 7)
    same_row, same_column = (x[:, None] == x for x in (rows, columns))
    assert torch.equal(masks, torch.stack([same_row, same_row, same_column]))


@pytest.mark.parametrize(("grid", "length", "step"), [((5, 7), 35, 7), (None, 100, 10), (None, 256, 16)])
def test_a_stride_is_a_row_of_the_grid_or_the_root_of_the_length(grid, length, step):
    """l near sqrt(N) has the fewest keys, l + N / l (Child et al. 2019)."""
    geometry = Geometry(16, 2, length, False, grid=grid)
    assert attention.build("sparse_strided", geometry).stride == step
    assert attention.build("sparse_fixed", geometry).block == step


@pytest.mark.parametrize(
    ("name", "knobs", "row", "full", "causal"),
    [
        ("global", {"tokens": 2}, 50, {3}, {3}),
        ("global", {"tokens": 2}, 1, {99}, {2}),
        ("band", {"window": 4}, 50, {2 * 4 + 1}, {4 + 1}),
        ("dilated", {"window": 4, "dilation": 3}, 50, {2 * 4 + 1}, {4 + 1}),
        ("block_local", {"block": 9}, 50, {9}, {6}),  # 45 to 53
        ("random", {"keys_per_token": 7}, 50, {7 + 1}, {7 + 1}),
        ("star", {}, 50, {4}, {3}),
        ("longformer", {"window": 4, "global_tokens": 3}, 50, {2 * 4 + 1 + 3}, {4 + 1 + 3}),
        ("bigbird", {"block": 3, "random_blocks": 2}, 50, {(3 + 1 + 2) * 3}, {(2 + 1 + 2) * 3}),  # 48, 49, 50
        ("sparse_strided", {"stride": 9}, 50, {2 * 9 - 1, 99 // 9}, {9, 6}),  # causal: 5, 14, ..., 50
        ("sparse_fixed", {"block": 9, "summary": 2}, 53, {9, 2 * 99 // 9}, {9, 2 * 6}),
        ("axial", {}, 50, {11, 9}, {7, 5}),  # row 4, column 6 of 9 rows and 11 columns
        ("image_1d", {"block": 9, "memory": 5}, 50, {9 + 5}, {6 + 5}),
        ("image_2d", {"tile": 3, "memory": 2}, 50, {(3 + 2 * 2) ** 2}, None),
    ],
)
def test_keys_of_a_row_are_as_many_as_published(name, knobs, row, full, causal):
    """A row in the middle of 99 tokens."""
    for expected, one_way in ((full, False), (causal, True)):
        if expected is not None:
            layer = build(name, one_way, length=99, grid=(9, 11), **knobs)
            assert set(mask_of(layer, 99)[:, row].sum(-1).tolist()) == expected


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        ("sparse_strided", True),
        ("sparse_strided", False),
        ("sparse_fixed", True),
        ("sparse_fixed", False),
        ("axial", False),
    ],
)
def test_two_steps_connect_all_tokens(name, causal):
    """One in a head of the second half, then one of the first: the boolean product of their masks."""
    layer = build(name, causal, length=36, grid=(6, 6), **({} if name == "axial" else CASES[name][0]))
    first, *_, last = mask_of(layer, 36).double()
    everything = torch.ones(36, 36, dtype=torch.bool)
    assert torch.equal(last @ first > 0, everything.tril() if causal else everything)


@pytest.mark.parametrize("dense", [0, 512], ids=["tiles", "masked"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("global", {"tokens": 40}),
        ("band", {"window": 40}),
        ("dilated", {"window": 40, "dilation": 1}),
        ("block_local", {"block": 40}),
        ("random", {"keys_per_token": 40}),
        ("longformer", {"window": 40, "dilation": 1}),
        ("bigbird", {"block": 40}),
        ("bigbird", {"block": 3, "window": 1, "global_blocks": 2, "random_blocks": 10}),
        ("sparse_fixed", {"block": 40, "summary": 40}),
        ("image_1d", {"block": 40}),
    ],
)
def test_a_pattern_of_everything_is_softmax(name, knobs, causal, dense, monkeypatch):
    monkeypatch.setattr(sparse, "DENSE", dense)
    layer, x = build(name, causal, **knobs), tokens(33)
    softmax = attention.build("softmax", layer.geometry).double()
    softmax.load_state_dict({k: v for k, v in layer.state_dict().items() if k.startswith(("qkv", "proj"))})
    torch.testing.assert_close(layer(x), softmax(x), **EXACT)


def test_a_window_of_nothing_is_the_value_itself():
    layer, x = build("band", causal=False, window=0), tokens(20)
    torch.testing.assert_close(layer(x), layer.proj(layer.qkv(x)[..., 32:]), **EXACT)


# -- random patterns ---------------------------------------------------------------------------------------------------


def test_all_sets_are_drawn_equally_often():
    """Two of 0, 1 and 7, 8, 9: ten sets, 10,000 draws; sd of a count sqrt(10,000 0.1 0.9) = 30."""
    rows = torch.full((10_000,), 2)
    drawn = draw_others(2, rows, 5, rows + 1, torch.Generator().manual_seed(0)).sort(1).values
    sets, counts = drawn.unique(dim=0, return_counts=True)
    assert {tuple(pair) for pair in sets.tolist()} == {
        (a, b) for a in (0, 1, 7, 8, 9) for b in (0, 1, 7, 8, 9) if a < b
    }
    assert (counts - 1000).abs().max() < 5 * 30


def test_where_there_are_too_few_all_are_drawn():
    drawn = draw_others(3, torch.tensor([0, 1, 2, 3]), 1, torch.zeros(4).long(), torch.Generator().manual_seed(0))
    assert [sorted(row) for row in drawn.tolist()] == [[-1, -1, -1], [-1, -1, 0], [-1, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize("name", ["random", "bigbird"])
def test_random_keys_are_those_of_seed_layer_and_head(name):
    def table(seed: int, layer: int) -> torch.Tensor:
        geometry = Geometry(dim=32, heads=4, length=99, causal=False, seed=seed, layer=layer)
        torch.manual_seed(seed + 17 * layer)  # the global generator has no part in it
        (buffer,) = attention.build(name, geometry).buffers()
        return buffer

    one = table(0, 0)
    assert torch.equal(one, table(0, 0))
    others = [table(1, 0), table(0, 1), one.roll(1, 0)]
    assert all((one != other).float().mean() > 0.5 for other in others)


@pytest.mark.parametrize("dense", [0, 512], ids=["tiles", "masked"])
@pytest.mark.parametrize("name", ["random", "bigbird"])
def test_loaded_random_keys_replace_those_in_use(name, dense, monkeypatch):
    monkeypatch.setattr(sparse, "DENSE", dense)
    x = tokens(33)
    one, two = (
        attention.build(name, Geometry(dim=16, heads=4, length=35, causal=True, seed=s), **CASES[name][0]).double()
        for s in (0, 1)
    )
    assert not torch.equal(one(x), two(x))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x), two(x))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "heads", "knobs", "message"),
    [
        ("band", 4, {"window": -1}, "attention.window=-1: must be at least 0"),
        ("dilated", 4, {"dilation": 0}, "attention.dilation=0: must be at least 1"),
        ("block_local", 4, {"block": 0}, "attention.block=0"),
        ("etc", 4, {"slots": 0}, "attention.slots=0"),
        ("longformer", 1, {}, "dilated_heads=2: must be at most model.heads=1"),
        ("sparse_fixed", 4, {"block": 3}, "summary=4: must be at most attention.block=3"),
        ("sparse_strided", 1, {}, "split=heads needs two heads.*split=layers or split=union"),
        ("axial", 4, {}, "needs a two-dimensional grid of patches \\(vision only\\). .*softmax"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(name, heads, knobs, message):
    with pytest.raises(SetupError, match=message):
        attention.build(name, Geometry(dim=32, heads=heads, length=20, causal=False), **knobs)


def test_every_position_pattern_is_tested_here():
    found = {n for n in attention.available() if issubclass(attention.mechanism(n), sparse.SparseAttention)} - {"bpt"}
    assert found == set(NAMES)
