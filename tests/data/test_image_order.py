"""Which image stands where, and who computes it: against timm's sampler, and the same for any number of processes."""

import numpy as np
import pytest
from timm.data.distributed_sampler import RepeatAugSampler

from fourierformer.data.images.order import ImageOrder
from fourierformer.errors import SetupError


def order(images=5000, size=1024, **changes) -> ImageOrder:
    usual = {"seed": 0, "repeats": 3, "mix_batch": 256, "mixing": True, "micro_batch": None}
    return ImageOrder(images, size, **usual | changes)


@pytest.mark.parametrize("world", [1, 4])
def test_an_epoch_is_what_timms_sampler_deals_out(world):
    ours = order(seed=7)
    epoch = 2
    dealt = []
    for rank in range(world):
        sampler = RepeatAugSampler(range(5000), num_replicas=world, rank=rank, num_repeats=3)
        sampler.set_epoch(ours.epoch_seed(epoch))  # all that timm seeds its permutation with
        dealt.append(list(sampler))
    shown = [ours.indices(epoch * ours.steps_per_epoch + step) for step in range(ours.steps_per_epoch)]
    together = np.stack(dealt, axis=1).reshape(-1)  # rank r holds rows r, r + W, ...
    assert np.array_equal(np.concatenate(shown), together[: len(shown) * 1024])


def test_imagenets_epoch_has_the_published_number_of_steps():
    """1,281,167 images at 1,024 a step: 1,251 steps, with and without repeats."""
    assert order(1_281_167).steps_per_epoch == order(1_281_167, repeats=1).steps_per_epoch == 1251
    assert order(1_281_167).epoch(300 * 1251 - 1) == 299


def test_without_repeats_an_epoch_shows_no_image_twice():
    ours = order(1000, 96, repeats=1, mixing=False)
    shown = np.concatenate([ours.indices(step) for step in range(ours.steps_per_epoch)])
    assert len(shown) == len(set(shown.tolist())) == 960
    whole = order(960, 96, repeats=1, mixing=False)
    assert sorted(np.concatenate([whole.indices(step) for step in range(10)])) == list(range(960))


def test_a_batch_of_all_images_is_an_epoch_of_one_step():
    ours = order(96, 96, repeats=1, mixing=False)
    assert ours.steps_per_epoch == 1
    assert [sorted(ours.indices(step)) for step in (0, 1)] == [list(range(96))] * 2
    assert not np.array_equal(ours.indices(0), ours.indices(1))
    with pytest.raises(SetupError, match="at most 95"):
        order(95, 96, repeats=1, mixing=False)


def test_with_three_repeats_a_third_of_the_images_is_shown_three_times():
    ours = order(3072, 1024)
    counts = np.bincount(np.concatenate([ours.indices(step) for step in range(3)]), minlength=3072)
    assert sorted(set(counts.tolist())) == [0, 3]
    assert (counts == 3).sum() == 1024


def test_every_seed_and_every_epoch_has_its_own_order():
    """timm's sampler knows no seed, so that five seeds of a table would all see one order."""
    first = order(seed=0)
    assert not np.array_equal(first.indices(0), order(seed=1).indices(0))
    assert not np.array_equal(first.indices(0), first.indices(first.steps_per_epoch))
    assert np.array_equal(first.indices(0), order(seed=0).indices(0))


def test_rank_batches_flipped_as_deit_flips_them_give_our_pairs():
    """DeiT: rank r of 4 holds rows r::4 of the global batch, and mixes its batch with itself reversed."""
    size, ranks = 1024, 4
    deit = {}
    for rank in range(ranks):
        batch = np.arange(size)[rank::ranks]
        deit |= {int(row): (rank, int(partner)) for row, partner in zip(batch, batch[::-1], strict=True)}
    for rank in range(ranks):
        (part,) = order(rank=rank, world=ranks).micro_batches(0)
        assert sorted(part.rows) == list(range(rank, size, ranks))
        assert part.pieces == ((rank, 0, 256),)
    assert partners(order().micro_batches(0)) == deit


def partners(parts) -> dict[int, tuple[int, int]]:
    """row -> (group, partner), by reversing each piece."""
    by_row = {}
    for part in parts:
        assert [start for _, start, _ in part.pieces] == [0, *(stop for _, _, stop in part.pieces[:-1])]
        assert part.pieces[-1][2] == len(part.rows)
        for group, start, stop in part.pieces:
            rows = part.rows[start:stop].tolist()
            by_row |= {row: (group, partner) for row, partner in zip(rows, rows[::-1], strict=True)}
    return by_row


@pytest.mark.parametrize("mix_batch", [None, 16, 48])
@pytest.mark.parametrize("micro_batch", [None, 2, 10])
def test_pairs_do_not_depend_on_processes_or_micro_batches(mix_batch, micro_batch):
    expected = partners(order(size=96, mix_batch=mix_batch).micro_batches(0))
    assert sorted(expected) == list(range(96))
    for world in (1, 2, 4):
        parts = [
            order(size=96, mix_batch=mix_batch, micro_batch=micro_batch, rank=rank, world=world).micro_batches(5)
            for rank in range(world)
        ]
        assert partners([part for own in parts for part in own]) == expected
        assert {sum(len(part.rows) for part in own) for own in parts} == {96 // world}
        assert all(len(part.rows) <= (micro_batch or 96) for own in parts for part in own)
        assert sum(len(part.rows) for own in parts for part in own) == 96


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("micro_batch", [None, 1, 7])
def test_without_mixing_every_row_is_computed_once(world, micro_batch):
    parts = [
        part
        for rank in range(world)
        for part in order(size=96, mixing=False, micro_batch=micro_batch, rank=rank, world=world).micro_batches(0)
    ]
    assert sorted(row for part in parts for row in part.rows) == list(range(96))
    assert all(part.pieces == () for part in parts)


def test_sample_seeds_are_all_different_and_fit_torch():
    seeds = {
        order(seed=seed).sample_seed(step, row) for seed in (0, 1) for step in (0, 1, 11, 375_299) for row in range(512)
    }
    assert len(seeds) == 2 * 4 * 512
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 1000}, "global_batch_size=1024: a step takes more images than the 1,000"),
        ({"mix_batch": 300}, "cannot be mixed in batches of 300: augment.mix_batch must be even and divide it"),
        ({"size": 1023, "mix_batch": None}, "cannot be mixed in batches of 1023"),
        ({"size": 1020, "mix_batch": None, "world": 4}, "510 pairs .* 4 processes .* use a multiple of 8"),
        ({"micro_batch": 15}, "trainer.micro_batch_size=15 must be even"),
        ({"mixing": False, "world": 3}, "global_batch_size=1024 cannot be shared equally by 3 processes"),
    ],
)
def test_what_does_not_divide_is_refused_with_its_numbers(changes, message):
    with pytest.raises(SetupError, match=message):
        order(**changes)
