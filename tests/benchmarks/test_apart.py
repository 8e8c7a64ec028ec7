"""A process for each measurement: what kills it, poisons it or hangs in it leaves the others measured."""

import multiprocessing.forkserver

import pytest

import benchmarks.apart
from benchmarks.apart import Ended, apart
from tests.helpers.apart_items import forked_after_cuda, numbers

PRELOADED = benchmarks.apart.PRELOADED


@pytest.fixture(autouse=True)
def few_imports(monkeypatch):
    monkeypatch.setattr(benchmarks.apart, "PRELOADED", [])


@pytest.mark.full("imports all that a process of a measurement imports")
def test_a_gpu_can_be_used_there(monkeypatch):
    """CUDA refuses a process that was forked from one that has used it: no preloaded module may."""
    monkeypatch.setattr(benchmarks.apart, "PRELOADED", PRELOADED)
    multiprocessing.forkserver._forkserver._stop()  # which has been started with the few of the other tests
    assert list(apart(forked_after_cuda)) == [False]


def test_items_arrive_as_they_are_made():
    assert list(apart(numbers, 3)) == [0, 1, 2]
    assert list(apart(numbers, 0)) == []


@pytest.mark.parametrize(
    ("then", "patience", "words"),
    [("dies", 120, "exit code 7"), ("raises", 120, "exit code 1"), ("hangs", 3, "gives nothing for 3 s")],
)
def test_what_was_sent_before_the_end_stays(then, patience, words):
    if then == "hangs":
        list(apart(numbers, 1))  # the process that others fork from has started
    items = apart(numbers, 2, then, patience=patience)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(Ended, match=words):
        next(items)
