"""Numbers that are a function of key, row and position: the published hash, and the law they follow."""

import pytest
import torch

from fourierformer.attention.engines.noise import uniform


def splitmix(z: int) -> int:
    """SplitMix64's mixing function (Steele et al. 2014), in whole numbers."""
    wrap = 2**64 - 1
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & wrap
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & wrap
    return z ^ z >> 31


def test_it_is_splitmix_of_key_row_and_position():
    # the first output of SplitMix64 with the seed 0, as published with the generator
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    found = uniform(torch.tensor(2**62 + 5), torch.tensor([0, 7]), 2, 3)
    for r, row in enumerate((0, 7)):
        of_row = splitmix((2**62 + 5 + 0x9E3779B97F4A7C15 * (row + 1)) % 2**64)
        for n in range(6):
            number = splitmix((of_row + 0x9E3779B97F4A7C15 * (n + 1)) % 2**64)
            assert found[r].flatten()[n].item() == ((number >> 41) + 0.5) / 2**23


def test_numbers_are_uniform_and_independent():
    u = uniform(torch.tensor(3), torch.arange(400), 500).double()
    assert 0 < u.min() < u.max() < 1
    spread = 1 / 12**0.5
    assert u.mean().item() == pytest.approx(0.5, abs=4 * spread / u.numel() ** 0.5)
    assert u.var().item() == pytest.approx(1 / 12, rel=0.02)
    centred = (u - 0.5) / spread
    for one, other in ((centred[:, 1:], centred[:, :-1]), (centred[1:], centred[:-1])):  # neighbours in row and column
        assert (one * other).mean().abs() < 4 / one.numel() ** 0.5
    another = (uniform(torch.tensor(4), torch.arange(400), 500).double() - 0.5) / spread
    assert (centred * another).mean().abs() < 4 / u.numel() ** 0.5


def test_a_row_has_its_numbers_wherever_it_stands():
    every, some = (uniform(torch.tensor(3), torch.tensor(rows), 4) for rows in (range(8), [5, 2]))
    assert torch.equal(some, every[[5, 2]])
