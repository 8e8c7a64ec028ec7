"""What the two tiers of tests promise: CONTRIBUTING.md."""

import re

import pytest

from tests.helpers.command_line import REPOSITORY

# of processor time: four times what is promised, because a busy machine takes longer for the same work
MOST_SECONDS = 60


@pytest.mark.full("looks at the run of the other tier before it")
def test_no_test_of_the_fast_tier_is_long(pytestconfig):
    cache = getattr(pytestconfig, "cache", None)  # none with `-p no:cacheprovider`
    seconds = cache and cache.get("fourierformer/processor_seconds", {})  # of tests/conftest.py
    if not seconds:
        pytest.skip("no `make test` has left its times here")
    long = {name: round(taken, 1) for name, taken in seconds.items() if taken > MOST_SECONDS}
    assert not long, f"mark them @pytest.mark.full('why'), or make them shorter: {long}"


def test_a_connection_to_another_machine_is_refused():
    import socket

    with pytest.raises(ConnectionRefusedError, match="tests reach no network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)


def test_the_makefile_runs_both_tiers():
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"^test:.*\n.*-m .not full.", makefile, flags=re.M)
    assert re.search(r"^test-all:.*\n.*-m full", makefile, flags=re.M)
