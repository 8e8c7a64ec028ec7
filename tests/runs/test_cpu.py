"""The settings for computing on a CPU: set before they are read, with the effect that is claimed."""

import os
import platform
import subprocess
import sys

import pytest

from fourierformer.runs.cpu import let_threads_sleep
from tests.helpers.command_line import REPOSITORY

FAULTS = """
import resource
import numpy
from fourierformer.runs.cpu import keep_freed_memory

keep_freed_memory()
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    numpy.ones(2**23)  # 64 MiB: 16,384 pages
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[1:]))
"""

PEAKS = """
import torch
from fourierformer.runs.cpu import keep_freed_memory
from fourierformer.runs.measure import peak_memory, reset_peak_memory

keep_freed_memory()
before = peak_memory(torch.device("cpu"))
blocks = [torch.ones(2**18) for _ in range(300)]  # 1 MiB each
del blocks
reset_peak_memory()
print((peak_memory(torch.device("cpu")) - before) // 2**20)
"""


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_sleep_unless_the_user_says_otherwise(monkeypatch, before, after):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that the test leaves nothing behind
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    let_threads_sleep()
    assert os.environ.get("GOMP_SPINCOUNT") == after


@pytest.mark.parametrize("script", ["train_lm", "train_vit"])
def test_a_script_starts_without_torch(script):
    """OpenMP reads its settings when torch is imported: launch() must come first."""
    assert in_a_new_process(f"import sys, {script}; print('torch' in sys.modules)") == "False"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is changed")
def test_freed_memory_is_used_again_without_page_faults():
    assert int(in_a_new_process(FAULTS)) < 100


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is changed")
def test_the_peak_of_a_job_is_not_that_of_the_job_before():
    """Memory that the allocator keeps would count as the next job's."""
    assert int(in_a_new_process(PEAKS)) < 100
