"""Independent sequences: whole, shuffled anew in every epoch, every token a target."""

import numpy as np
import pytest
import torch

from fourierformer.data.text.sequences import START, ShuffledSequences, shifted, steps_per_epoch
from fourierformer.errors import SetupError

LENGTH = 4


def tokens(count: int) -> np.ndarray:
    """Sequence n is n, n + 100, n + 200, n + 300: each of its tokens says where it belongs."""
    return (np.arange(count, dtype=np.uint16)[:, None] + 100 * np.arange(LENGTH, dtype=np.uint16)).reshape(-1)


def epoch_of(order: ShuffledSequences, number: int) -> list[int]:
    """The sequences of an epoch in their order, each checked to be whole."""
    seen = []
    for step in range(number * order.steps_per_epoch, (number + 1) * order.steps_per_epoch):
        inputs, targets = order.batch(step)
        assert inputs.dtype == targets.dtype == torch.int64
        first = targets[:, 0]
        assert torch.equal(targets, first[:, None] + 100 * torch.arange(LENGTH))
        assert (inputs[:, 0] == START).all()
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        seen += first.tolist()
    return seen


def test_an_epoch_shows_every_sequence_once_but_for_what_no_batch_takes():
    order = ShuffledSequences(tokens(23), 5, LENGTH, seed=1)
    assert order.steps_per_epoch == steps_per_epoch(23 * LENGTH, 5, LENGTH) == 4
    epochs = [epoch_of(order, number) for number in range(3)]
    for seen in epochs:
        assert len(seen) == len(set(seen)) == 20
        assert set(seen) < set(range(23))
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_is_a_function_of_seed_and_step():
    first, second = (ShuffledSequences(tokens(40), 8, LENGTH, seed=7) for _ in range(2))
    second.batch(11)
    for step in (3, 0, 12):
        assert all(torch.equal(a, b) for a, b in zip(first.batch(step), second.batch(step), strict=True))
    assert epoch_of(ShuffledSequences(tokens(40), 8, LENGTH, seed=8), 0) != epoch_of(first, 0)


def test_processes_share_a_batch_without_overlap():
    order = ShuffledSequences(tokens(40), 8, LENGTH, seed=7)
    whole = order.batch(6)
    parts = [order.batch(6, rank, 4) for rank in range(4)]
    assert all(torch.equal(torch.cat([part[i] for part in parts]), whole[i]) for i in range(2))
    with pytest.raises(SetupError, match="8 sequences cannot be shared equally by 3"):
        order.batch(0, 0, 3)


def test_tokens_are_counted():
    order = ShuffledSequences(tokens(23), 5, LENGTH, seed=1)
    assert [order.tokens_after(steps) for steps in (0, 1, 9)] == [0, 20, 180]


def test_the_epoch_of_cifar10():
    assert steps_per_epoch(50_000 * 3_072, 128, 3_072) == 390


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(SetupError, match="global_batch_size=24"):
        ShuffledSequences(tokens(23), 24, LENGTH, seed=0)


def test_the_data_is_left_as_it_was():
    sequences = tokens(3).reshape(-1, LENGTH)
    before = sequences.copy()
    inputs, targets = shifted(sequences)
    targets.zero_()
    inputs.zero_()
    assert (sequences == before).all()
