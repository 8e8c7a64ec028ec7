"""benchmarks/images.py: the numbers add up."""

import itertools
import time

from benchmarks import images


def test_the_first_batch_is_not_timed(monkeypatch):
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    taken = []
    batches = (taken.append(number) for number in itertools.count())
    assert images.images_per_second(batches, batch=64, count=5) == 5 * 64 / 2
    assert len(taken) == 6


def test_turns_alternate_and_the_ratio_is_of_neighbours(monkeypatch):
    turns = []

    def maker(name):
        return lambda: turns.append(name) or iter(())

    monkeypatch.setattr(images, "images_per_second", lambda *_: {"ours": 110.0, "timm": 100.0}[turns[-1]])
    rates = images.compare({name: maker(name) for name in ("ours", "timm")}, batch=1, count=1, turns=3)
    assert turns == ["ours", "timm", "timm", "ours", "ours", "timm"]
    assert rates == {"ours": [110.0] * 3, "timm": [100.0] * 3}
    uneven = {"ours": [200.0, 50.0, 90.0], "timm": [100.0, 100.0, 100.0]}
    assert images.summary(uneven) == ("ours 90.0 images/s, timm 100.0 images/s, ratio 0.900 (from 0.500 to 2.000)")
