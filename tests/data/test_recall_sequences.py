"""Sequences of associative recall: the law of Zoology's generator written out in numpy, and angles and norms."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fourierformer.data.recall.sequences import NOTHING, draw, nearest_is_right
from fourierformer.data.recall.spec import RecallData
from fourierformer.errors import SetupError

DEFAULTS = {
    **{
        "name": "recall",
        "layout": "pairs",
        "keys": "words",
        "length": 40,
        "pairs": 8,
        "queries": None,
        "vocabulary": 64,
    },
    **{"gap_power": 0.01, "previous_token": False, "seed": 0, "held_out": 4},
}


def data(**changes) -> RecallData:
    return RecallData(**(DEFAULTS | changes))


def written_out(length, pairs, vocabulary, power, rng):
    """One sequence of multi-query recall, step by step as its authors describe it: (inputs, labels)."""
    half = vocabulary // 2
    keys = rng.choice(np.arange(1, half), pairs, replace=False)
    values = rng.choice(np.arange(half, vocabulary), pairs, replace=False)
    inputs, labels = rng.integers(vocabulary, size=length), np.full(length, -100)
    inputs[: 2 * pairs : 2], inputs[1 : 2 * pairs : 2] = keys, values
    slots = np.arange((length - 2 * pairs) // 2)
    odds = (slots + 1.0) ** (power - 1)
    for key, value, slot in zip(
        keys, values, rng.choice(slots, pairs, replace=False, p=odds / odds.sum()), strict=True
    ):
        inputs[2 * pairs + 2 * slot], labels[2 * pairs + 2 * slot] = key, value
    return inputs, labels


def test_keys_and_values_are_any_of_their_half_of_the_vocabulary():
    """In 1,600 draws of 31 keys and of 32 values none is left out; 0 is no key."""
    drawn = draw(data(layout="stream"), 200, seed=1)
    assert set(drawn.tokens[:, :16:2].flatten().tolist()) == set(range(1, 32))
    assert set(drawn.tokens[:, 1:16:2].flatten().tolist()) == set(range(32, 64))


def test_a_stream_has_the_layout_of_zoology():
    drawn = draw(data(layout="stream", length=64), 200, seed=1)
    for tokens, places, answers in zip(drawn.tokens, drawn.places, drawn.answers, strict=True):
        keys, values = tokens[:16:2].tolist(), tokens[1:16:2].tolist()
        assert len(set(keys)) == len(set(values)) == 8
        assert all(1 <= key < 32 for key in keys)
        assert all(32 <= value < 64 for value in values)
        assert len(set(places.tolist())) == 8
        assert all(place % 2 == 0 and 16 <= place < 64 for place in places.tolist())
        assert tokens[places].tolist() == keys  # each key once more, in the order of its draw
        assert answers.tolist() == values


def test_slots_of_a_stream_follow_the_law_of_zoology():
    """How often each slot is taken, by each pair, against the sequential draws of the written-out generator."""
    rng, count = np.random.default_rng(3), 6000
    ours = (draw(data(layout="stream", length=64, pairs=4), count, seed=2).places - 8) // 2
    theirs = []
    for _ in range(count):
        inputs, labels = written_out(64, 4, 64, 0.01, rng)
        keys = inputs[:8:2].tolist()
        at = np.flatnonzero(labels >= 0)
        theirs.append([(at[[inputs[a] for a in at].index(key)] - 8) // 2 for key in keys])
    for pair in range(4):
        a, b = (np.bincount(np.asarray(x)[:, pair], minlength=28) / count for x in (ours, theirs))
        assert np.abs(a - b).max() < 5 * math.sqrt(2 * 0.25 / count)
    first = np.bincount(ours[:, 0].numpy(), minlength=28) / count
    odds = np.arange(1, 29) ** -0.99
    assert np.abs(first - odds / odds.sum()).max() < 5 * math.sqrt(0.25 / count)


def test_random_tokens_stand_between_the_queries():
    drawn = draw(data(layout="stream", length=256, pairs=2), 100, seed=1)
    counts = torch.bincount(drawn.tokens[:, 5:].flatten(), minlength=64).double()
    assert (counts / counts.sum() - 1 / 64).abs().max() < 0.005


def test_the_token_before_is_the_companion_in_a_stream():
    drawn = draw(data(layout="stream", length=64, previous_token=True), 3, seed=1)
    assert torch.equal(drawn.companions[:, 1:], drawn.tokens[:, :-1])
    assert (drawn.companions[:, 0] == NOTHING).all()
    assert (draw(data(layout="stream", length=64), 3, seed=1).companions == NOTHING).all()


@pytest.mark.parametrize("queries", [None, 3])
def test_a_pair_is_one_token_and_only_asked_keys_come_again(queries):
    drawn = draw(data(queries=queries), 50, seed=4)
    asked = queries or 8
    assert drawn.places.shape == drawn.answers.shape == (50, asked)
    for tokens, companions, places, answers in zip(
        drawn.tokens, drawn.companions, drawn.places, drawn.answers, strict=True
    ):
        values = dict(zip(tokens[:8].tolist(), companions[:8].tolist(), strict=True))
        assert [values[key] for key in tokens[places].tolist()] == answers.tolist()
        assert (companions[8:] == NOTHING).all()
        assert (places >= 8).all()


def test_every_pair_is_asked_equally_often():
    drawn = draw(data(queries=2), 4000, seed=5)
    places = (drawn.companions[:, :8, None] == drawn.answers[:, None]).any(2).double().mean(0)
    assert (places - 2 / 8).abs().max() < 0.03


def test_sequences_are_a_function_of_the_seed():
    first, again, other = (draw(data(), 5, seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_longer_sequences_hold_as_many_pairs():
    drawn = draw(data(), 20, seed=1, length=160)
    assert drawn.tokens.shape == (20, 160)
    assert drawn.places.shape == (20, 8)
    assert drawn.places.max() > 40


def test_queries_of_vectors_stand_at_the_stated_angle_with_the_norm_of_their_key():
    config = data(keys="vectors", dimension=5, angle=25.0, norm_spread=0.3)
    drawn = draw(config, 30, seed=1)
    right = (drawn.companions[:, :8, None] == drawn.answers[:, None]).double().argmax(1)
    keys = drawn.vectors.take_along_dim(right[..., None], 1)
    queries = drawn.vectors.take_along_dim(drawn.places[..., None], 1)
    torch.testing.assert_close(keys.norm(dim=-1), queries.norm(dim=-1))
    cosines = F.cosine_similarity(keys, queries, dim=-1)
    torch.testing.assert_close(cosines, torch.full_like(cosines, math.cos(math.radians(25))))
    assert abs(drawn.vectors[:, :8].norm(dim=-1).log().std().item() - 0.3) < 0.05


def test_twins_have_the_stated_cosine():
    drawn = draw(data(keys="vectors", dimension=6, twin_cosine=0.8, pairs=7), 30, seed=1)
    cosines = F.cosine_similarity(drawn.vectors[:, 0:6:2], drawn.vectors[:, 1:6:2], dim=-1)
    torch.testing.assert_close(cosines, torch.full_like(cosines, 0.8))


def test_a_perfect_search_errs_where_twins_are_nearer_than_the_angle():
    exact = data(keys="vectors", dimension=16)
    assert nearest_is_right(exact, draw(exact, 20, seed=1)) == 1.0
    hard = data(keys="vectors", dimension=2, angle=60.0)
    assert nearest_is_right(hard, draw(hard, 50, seed=1)) < 0.6


@pytest.mark.parametrize(
    ("changes", "way_out"),
    [
        ({"pairs": 21}, "data.length=42, or data.pairs=20"),
        ({"pairs": 12, "layout": "stream"}, "data.length=48, or data.pairs=10"),
        ({"queries": 9}, "data.queries=8, or null"),
        ({"pairs": 20, "vocabulary": 40}, "data.vocabulary=42"),
        ({"keys": "vectors", "layout": "stream"}, "data.layout=pairs"),
        ({"keys": "vectors", "dimension": 1}, "data.dimension=32"),
        ({"gap_power": 0}, "data.gap_power"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_some_that_do(changes, way_out):
    with pytest.raises(SetupError) as error:
        data(**changes)
    assert way_out in str(error.value)
