"""Shared by all tests: the real data folder, no network, and Triton without a GPU."""

import gc
import os
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# before anything imports `datasets`, which reads it once: no test may wait for the hub
os.environ["HF_HUB_OFFLINE"] = "1"

# before anything imports triton, which decides there: without a GPU the kernels run in Triton's interpreter (slow, so
# on tiny shapes); on one they are compiled. backend="auto" takes the portable backend on a CPU all the same.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# As `make test` does for whole processes. Tests fork, and the fork of a process with threads of OpenMP waits forever.
torch.set_num_threads(1)

# The first backward of a process starts a thread for every GPU that torch knows, after which no fork can do one. Later
# torch.compile registers a GPU that is not there, so the first one must come before it.
if not torch.cuda.is_available():
    torch.ones(1, requires_grad=True).sum().backward()

# A test draws the same examples at every run, on a slow and busy machine too: what it finds can be repeated.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

REPOSITORY = Path(__file__).resolve().parent.parent
DURATIONS = "fourierformer/processor_seconds"  # in pytest's cache: of every test of the last `make test`


# Imports and the collection of thousands of tests leave nothing for the garbage collector, which would look through all
# of it again and again: it begins after them, and passes over them.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("full"):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.full needs a reason: full('compiles every tile')")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Notes the processor time of a test and of the processes it started, which a busy machine does not change much."""
    before = _processor_seconds()
    yield
    _seconds[item.nodeid] = _processor_seconds() - before


def pytest_sessionfinish(session):
    """Workers pass their times to the process that started them, which writes those of a whole fast tier."""
    gc.unfreeze()  # what is left at the end is freed: Triton's bindings report the rest as leaks
    config, cache = session.config, getattr(session.config, "cache", None)  # none with -p no:cacheprovider
    if hasattr(config, "workeroutput"):
        config.workeroutput["processor_seconds"] = _seconds
    elif cache and config.option.markexpr == "not full" and config.args == config.getini("testpaths"):
        cache.set(DURATIONS, _seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _seconds.update(getattr(node, "workeroutput", {}).get("processor_seconds", {}))


_seconds: dict[str, float] = {}


def _processor_seconds() -> float:
    return sum(os.times()[:4])  # own and children's, user and system


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with wikitext-2, wikitext-103 ...: FOURIERFORMER_TEST_DATA, else ../shared/data beside the repository."""
    named = os.environ.get("FOURIERFORMER_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is no folder (set FOURIERFORMER_TEST_DATA)")
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Connections to other machines are refused at once, as on a machine without a network."""
    connect = socket.socket.connect

    def to_this_machine(self, address):
        if self.family == socket.AF_UNIX or address[0] in ("localhost", "::1") or address[0].startswith("127."):
            return connect(self, address)
        raise ConnectionRefusedError(f"tests reach no network: {address}")

    monkeypatch.setattr(socket.socket, "connect", to_this_machine)


@pytest.fixture(autouse=True)
def torch_as_before():
    """What a test sets for the whole process does not reach the next one: a run sets precision and determinism."""
    known = {
        torch.set_float32_matmul_precision: torch.get_float32_matmul_precision,
        torch.set_default_dtype: torch.get_default_dtype,
        torch.set_num_threads: torch.get_num_threads,
        torch.use_deterministic_algorithms: torch.are_deterministic_algorithms_enabled,
    }
    before, of_convolutions = {change: read() for change, read in known.items()}, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = of_convolutions
    for change, read in known.items():
        if read() != before[change]:  # use_deterministic_algorithms imports the compiler: seconds
            change(before[change])
