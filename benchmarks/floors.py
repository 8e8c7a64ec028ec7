"""How fast a GPU could run the kernel at best: counted instructions, products and bytes over the device's rates."""

import subprocess
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from benchmarks.contestants import Contestant

# Of one multiprocessor, by compute capability (CUDA programming guide, and the data sheets' rates over clocks):
# float32 lanes, each starts one instruction per clock; and multiply-adds of float16 per clock in the matrix unit.
LANES = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
MATRIX_RATE = {(8, 0): 1024, (8, 6): 512, (8, 9): 512, (9, 0): 2048, (10, 0): 4096}
# Executed per pair of query and key by one lane, from the machine code: scripts/inspect_kernel.py counts them.
# (direction, precision): {width: instructions}; backward is both launches together. What is not here has no floor.
INSTRUCTIONS_PER_PAIR = {
    ("forward", "half"): {16: 25, 32: 51, 64: 97},
    ("backward", "half"): {16: 270, 32: 517, 64: 1020},
    ("forward", "precise"): {16: 47, 32: 80, 64: 149},
    ("backward", "precise"): {16: 387, 32: 746, 64: 2578},
}
# One token and coordinate of the kernel that writes features, counted likewise: one that needs 16 of them.
INSTRUCTIONS_PER_FEATURES = {"half": 312, "precise": 624}
FEATURE_BYTES = {"half": 16 * 2, "precise": 2 * 16 * 2}  # of one token and coordinate
TENSORS_MOVED = {"forward": 4, "backward": 8}  # q, k, v, out; then q, k, v, out, dout, dq, dk, dv
FEATURES_READ = {"forward": 1, "backward": 2}  # once by each launch of the kernel
# Products of a pair: of 16 features per coordinate, and with values in TF32, which takes twice the time of float16.
# (features, values); in the backward both sides, each with two times the factors and the slopes, and dv.
PRODUCTS = {"forward": (1, 1), "backward": (6, 3)}
PRODUCT_PARTS = {"half": 1, "precise": 3}


def floor_ms(dims: tuple, what: str, contestant: "Contestant", limit: dict[str, float | None]) -> float | None:
    """The least time of a call: the launch that writes features, then the one that uses them, in each pass."""
    passes = what.split("+")
    counted = all(instructions_per_pair(dims[3], part, contestant) for part in passes)
    if not counted or limit["issue"] is None:
        return None
    return 1e3 * sum(
        features_floor(dims, contestant, limit) + pairs_floor(dims, part, contestant, limit) for part in passes
    )


def instructions_per_pair(width: int, part: str, contestant: "Contestant") -> int:
    """0 where they were not counted."""
    return INSTRUCTIONS_PER_PAIR.get((part, contestant.counts), {}).get(width, 0)


def features_floor(dims: tuple, contestant: "Contestant", limit: dict[str, float | None]) -> float:
    """Seconds to compute and to store the features of queries and keys."""
    numbers = feature_numbers(dims)
    instructions = numbers * INSTRUCTIONS_PER_FEATURES[contestant.counts]
    stored = beyond_cache(numbers * FEATURE_BYTES[contestant.counts], limit)
    return longest((instructions, limit["issue"]), (stored, limit["bandwidth"]))


def pairs_floor(dims: tuple, part: str, contestant: "Contestant", limit: dict[str, float | None]) -> float:
    """Seconds of the launches over pairs: instructions, matrix products, or memory, whichever takes longest."""
    batch, heads, tokens, width, causal = dims
    pairs = batch * heads * (tokens * (tokens + 1) // 2 if causal else tokens * tokens)
    factors, values = PRODUCTS[part]
    products = (16 * factors + 2 * values) * width * PRODUCT_PARTS[contestant.counts]
    moved = batch * heads * tokens * width * TENSORS_MOVED[part] * contestant.dtype.itemsize
    read = beyond_cache(feature_numbers(dims) * FEATURE_BYTES[contestant.counts], limit) * FEATURES_READ[part]
    return longest(
        (pairs * instructions_per_pair(width, part, contestant), limit["issue"]),
        (pairs * products, limit["matrix"]),
        (moved + read, limit["bandwidth"]),
    )


def feature_numbers(dims: tuple) -> int:
    """Tokens times coordinates of queries and keys."""
    batch, heads, tokens, width, _ = dims
    return 2 * batch * heads * tokens * width


def beyond_cache(size: float, limit: dict[str, float | None]) -> float:
    """The bytes that do not fit the second-level cache."""
    return max(0.0, size - (limit["cache"] or 0))


def longest(*works: tuple[float, float | None]) -> float:
    """Of (work, rate per second), where the rate is known."""
    return max(work / rate for work, rate in works if rate)


def query_gpu(what: str) -> float | None:
    """A number from nvidia-smi; None where there is no nvidia-smi or it has none."""
    gpu = f"GPU-{torch.cuda.get_device_properties().uuid}"
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def limits(device: str) -> dict[str, float | None]:
    """At the highest clocks, per second: instructions, float16 multiply-adds of the matrix unit, bytes of the memory;
    and the bytes of the second-level cache. None where unknown.
    """
    if device == "cpu":
        return {"issue": None, "matrix": None, "bandwidth": None, "cache": None}
    facts = torch.cuda.get_device_properties()
    kind = (getattr(facts, "major", 0), getattr(facts, "minor", 0))
    kilohertz = getattr(facts, "clock_rate", 0) or 1e3 * (query_gpu("clocks.max.sm") or 0)
    clocks = facts.multi_processor_count * kilohertz * 1e3
    transfers = 2e3 * getattr(facts, "memory_clock_rate", 0)  # two per clock
    return {
        "issue": LANES.get(kind, 0) * clocks or None,
        "matrix": MATRIX_RATE.get(kind, 0) * clocks or None,
        "bandwidth": transfers * getattr(facts, "memory_bus_width", 0) / 8 or None,
        "cache": getattr(facts, "L2_cache_size", None),
    }
