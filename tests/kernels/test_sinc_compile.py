"""Every tile of the table, compiled ahead of time for generations of GPUs.

No more registers spilled than stated (Case.most_spills), shared memory fits, the matrix unit is used.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.helpers.command_line import REPOSITORY

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.timeout(1500),
]


def inspect(*arguments):
    """In a process of its own: this one may be set to interpret kernels, which excludes compiling them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "scripts/inspect_kernel.py", "--check", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


ONE_MORE = pytest.mark.full("compiles one more")


@pytest.mark.parametrize(
    ("kernel", "arch"),
    [
        ("forward", "80"),
        *(
            pytest.param(*case, marks=ONE_MORE)
            for case in (("both", "80"), ("both", "90"), ("keys", "89"), ("queries", "90"), ("keys", "100"))
        ),
    ],
)
def test_a_tile_of_each_generation_compiles_well(kernel, arch):
    result = inspect("--kernel", kernel, "--arch", arch, "--nodes", "16", "--width", "16", "--mode", "half")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.full("compiles the widest heads")
@pytest.mark.parametrize(
    ("arch", "mode", "width"), [("89", "float32", "128"), ("89", "half", "256"), ("90", "float32", "256")]
)
def test_the_widest_heads_fit_into_shared_memory(arch, mode, width):
    """See `_widest` in fourierformer/kernels/sinc."""
    result = inspect("--kernel", "both", "--kernel", "keys", "--nodes", "16", "--nodes", "0", "--arch", arch,
                     "--mode", mode, "--width", width, "--log")  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.full("compiles every tile, some twenty minutes of a core")
@pytest.mark.parametrize("arch", ["80", "90", "100"])
@pytest.mark.parametrize("kernel", ["forward", "both", "queries", "keys"])
@pytest.mark.parametrize(
    "what",
    [
        ["--nodes", "16", "--width", "16", "--width", "64"],  # the table's two classes of widths, and beyond
        ["--nodes", "16", "--width", "128", "--log"],
        ["--nodes", "32", "--nodes", "0", "--width", "16", "--log"],
    ],
    ids=["widths", "wide", "other tiers"],
)
def test_every_tile_compiles_well(kernel, arch, what):
    result = inspect("--kernel", kernel, "--arch", arch, *what)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) >= 3


@pytest.mark.full("compiles tiles")
@pytest.mark.parametrize("nodes", ["0", "16"])
def test_leaving_keys_out_spills_nothing(nodes):
    result = inspect("--keep", "--arch", "90", "--nodes", nodes, "--width", "16", "--mode", "half", "--log")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("features ") == 1


@pytest.mark.full("compiles a large tile")
def test_a_tile_that_spills_is_an_error():
    large = ["--kernel", "keys", "--arch", "90", "--width", "64", "--nodes", "16", "--log", "--tile", "128,128,4"]
    result = inspect(*large)
    assert result.returncode == 1
    assert "spill registers" in result.stdout


@pytest.mark.full("compiles ten kernels")
def test_the_kernels_before_them_compile():
    result = inspect("--nodes", "16", "--width", "1", "--width", "30", "--mode", "half", "--log")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("features ") == 2 * 5  # widths, generations


@pytest.mark.full("compiles a kernel more")
def test_no_fusion_spoils_the_split_of_an_angle():
    """x rate - k with the product unrounded, beside the product rounded, would count what rounding lost twice."""
    program = """
from inspect_kernel import compile_ahead, features
settings = {"WIDTH": 16, "STORED": 16, "PRECISE": True, "Keep": None}
print(compile_ahead(features.write_features, settings, 90).asm["ptx"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    ptx = subprocess.run(
        command, cwd=REPOSITORY / "scripts", env=environment, capture_output=True, text=True, check=True
    ).stdout
    rounding = "0f4B400000"  # 1.5 * 2^23, which rounds to an integer when it is added
    lines = [line for line in ptx.splitlines() if rounding in line]
    assert lines
    assert not [line for line in lines if "fma" in line]
