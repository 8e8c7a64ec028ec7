"""The tests of a backend skip where it cannot be had; here it fails, so that a broken build is not taken for one."""

import os

import pytest
import torch

from fourierformer.kernels.sinc import HAS_TRITON, library, why_not_compiled
from tests.helpers.sinc_cases import NATIVE, fused_obstacle


def test_the_compiled_kernel_can_be_had_where_there_is_a_compiler():
    if os.name != "posix" or library.find_compiler() is None:
        pytest.skip("no C++ compiler here")
    assert why_not_compiled(torch.empty(0)) is None


def test_the_fused_kernels_run_in_the_interpreter_where_there_is_triton():
    if not HAS_TRITON or NATIVE:
        pytest.skip("a GPU here" if NATIVE else "no Triton here")
    assert fused_obstacle() is None
