import random
import subprocess
import sys

import numpy
import torch

from fourierformer.seeds import seed_everything, seed_of


def draws():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_seed_everything_fixes_python_numpy_and_torch():
    seed_everything(3)
    first = draws()
    seed_everything(3)
    assert draws() == first
    seed_everything(4)
    assert not any(a == b for a, b in zip(draws(), first, strict=True))


def test_seeds_of_any_size_are_taken():
    for seed in (0, 2**32, 2**63 - 1):
        seed_everything(seed)
        assert torch.initial_seed() == seed


def test_step_seeds_fit_torch_and_do_not_collide():
    seeds = {
        seed_of(seed, step, micro, rank)
        for seed in range(3)
        for step in range(1000)
        for micro in range(4)
        for rank in range(4)
    }
    assert len(seeds) == 3 * 1000 * 4 * 4  # 48,000 out of 2**63: a collision has probability 1e-10
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.manual_seed(max(seeds))


def test_the_order_of_the_parts_matters():
    assert len({seed_of(1, 2, 3, 4), seed_of(1, 2, 4, 3), seed_of(12, 3, 4, 0), seed_of(1, 23, 4, 0)}) == 4


def test_bits_are_balanced():
    """Neighbouring steps differ in about half of the 63 bits, so that neighbouring generators are unrelated."""
    flips = [(seed_of(1, step, 0, 0) ^ seed_of(1, step + 1, 0, 0)).bit_count() for step in range(2000)]
    assert abs(sum(flips) / len(flips) - 31.5) < 0.5  # sd of the mean: sqrt(63 / 4 / 2000) = 0.09


def test_the_same_in_another_process():
    """Python's hash() of a string is not."""
    code = "from fourierformer.seeds import seed_of; print(seed_of(1, 2, 3, 4))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == seed_of(1, 2, 3, 4)
