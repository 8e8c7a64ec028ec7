"""Lower bounds of the kernel's time on a GPU: counted instructions, products and bytes over the device's rates."""

import subprocess
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from benchmarks.contestants import Contestant

# Of one multiprocessor, by compute capability (CUDA programming guide, and the data sheets' rates over clocks):
# float32 lanes, each starts one instruction per clock; and multiply-adds of float16 per clock in the matrix unit.
LANES = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
MATRIX_RATE = {(8, 0): 1024, (8, 6): 512, (8, 9): 512, (9, 0): 2048, (10, 0): 4096}
# Bytes that the second-level cache delivers per clock. The A100's white paper states them; no number is published for
# 9.0, whose cache has as many partitions. Reads of tiles below were counted there only.
CACHE_RATE = {(9, 0): 5120}
# Executed per pair of query and key by one lane, counted in the machine code by scripts/inspect_kernel.py.
# (launches, precision): {width: instructions}; "two passes" is both together. Without an entry there is no floor.
INSTRUCTIONS_PER_PAIR = {
    ("forward", "half"): {16: 33, 32: 59, 64: 111},
    ("one pass", "half"): {16: 176, 32: 369, 64: 716},
    ("two passes", "half"): {16: 310, 32: 648, 64: 1271},
    ("forward", "precise"): {16: 55, 32: 117, 64: 224},
    ("one pass", "precise"): {16: 343, 32: 674, 64: 1316},
    ("two passes", "precise"): {16: 450, 32: 899, 64: 1755},
}
# Executed per token and coordinate by the kernel that writes features, counted likewise, for 16 features.
INSTRUCTIONS_PER_FEATURES = {"half": 160, "precise": 340}
FEATURE_BYTES = {"half": 16 * 2, "precise": 2 * 16 * 2}  # of one token and coordinate
# q, k, v, out; then q, k, v, out, dout, dq, dk, dv. One pass also writes and reads parts of dq, which are not counted.
TENSORS_MOVED = {"forward": 4, "one pass": 8, "two passes": 8}
FEATURES_READ = {"forward": 1, "one pass": 1, "two passes": 2}  # once by each launch of the kernel
# Products of a pair (features, values): 16 features per coordinate, and values in TF32, which takes twice the time of
# float16. In a pass of the backward the factors twice, the slopes, and dout v; and in the last one dv.
PRODUCTS = {"forward": (1, 1), "one pass": (3, 2), "two passes": (6, 3)}
PRODUCT_PARTS = {"half": 1, "precise": 3}
# How often a tile reads the features of its rows and of its columns: past the first-level cache on 9.0, by asynchronous
# copies. In the backward for both uses of the factors and, of the rows, for the slopes; a quarter of the columns again.
TILES = {
    "forward": {"forward": (1, 1)},
    "one pass": {"both": (3, 2.5)},
    "two passes": {"queries": (3, 2.5), "keys": (3, 2.5)},
}


def floor_ms(dims: tuple, what: str, contestant: "Contestant", limit: dict[str, float | None]) -> float | None:
    """The least time of a call: in each pass the launch that writes features, then the launches over pairs. None where
    instructions were not counted."""
    batch, heads, tokens, width, causal = dims
    kind = contestant.counts
    passes = [launches_of(part, tokens) for part in what.split("+")]
    per_pair = [INSTRUCTIONS_PER_PAIR.get((part, kind), {}).get(width) for part in passes]
    if None in per_pair or limit["issue"] is None:
        return None
    pairs = batch * heads * (tokens * (tokens + 1) // 2 if causal else tokens * tokens)
    numbers = 2 * batch * heads * tokens * width  # of queries and keys
    stored = max(0.0, numbers * FEATURE_BYTES[kind] - (limit["cache"] or 0))  # features beyond the second-level cache
    seconds = 0.0
    for part, instructions in zip(passes, per_pair, strict=True):
        factors, values = PRODUCTS[part]
        products = (16 * factors + 2 * values) * width * PRODUCT_PARTS[kind]
        moved = numbers // 2 * TENSORS_MOVED[part] * contestant.dtype.itemsize + stored * FEATURES_READ[part]
        written = (numbers * INSTRUCTIONS_PER_FEATURES[kind], limit["issue"]), (stored, limit["bandwidth"])
        used = (pairs * instructions, limit["issue"]), (pairs * products, limit["matrix"]), (moved, limit["bandwidth"])
        read = batch * heads * bytes_of_tiles(part, tokens, width, causal, kind) if limit["cache rate"] else 0
        seconds += longest(*written) + longest(*used, (read, limit["cache rate"]))
    return 1e3 * seconds


def launches_of(part: str, keys: int) -> str:
    """The key of the tables above for "forward" or "backward"."""
    from fourierformer.kernels.sinc.tiles import one_pass  # needs Triton

    return part if part == "forward" else "one pass" if one_pass(keys) else "two passes"


def bytes_of_tiles(part: str, tokens: int, width: int, causal: bool, kind: str) -> float:
    """Bytes of features that the tiles of one head read from the second-level cache, on compute capability 9.0."""
    from fourierformer.kernels.sinc.tiles import tile  # needs Triton

    total = 0.0
    for name, (of_rows, of_columns) in TILES[part].items():
        chosen = tile(name, width, 16, kind == "precise", False, 9)
        ends = (min(tokens, first + chosen.rows) if causal else tokens for first in range(0, tokens, chosen.rows))
        count = sum(-(-end // chosen.columns) for end in ends)
        total += count * (chosen.rows * of_rows + chosen.columns * of_columns) * width * FEATURE_BYTES[kind]
    return total


def longest(*works: tuple[float, float | None]) -> float:
    """Seconds of the slowest (work, rate per second) whose rate is known."""
    return max(work / rate for work, rate in works if rate)


def query_gpu(what: str) -> float | None:
    """A number from nvidia-smi; None where nvidia-smi or the number is missing."""
    gpu = f"GPU-{torch.cuda.get_device_properties().uuid}"
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def limits(device: str) -> dict[str, float | None]:
    """Rates per second at the highest clocks: instructions, float16 multiply-adds of the matrix unit, bytes of memory
    and of the second-level cache; and the size of that cache. None where unknown."""
    if device == "cpu":
        return dict.fromkeys(("issue", "matrix", "bandwidth", "cache rate", "cache"))
    facts = torch.cuda.get_device_properties()
    kind = (getattr(facts, "major", 0), getattr(facts, "minor", 0))
    kilohertz = getattr(facts, "clock_rate", 0) or 1e3 * (query_gpu("clocks.max.sm") or 0)
    clocks = facts.multi_processor_count * kilohertz * 1e3
    transfers = 2e3 * getattr(facts, "memory_clock_rate", 0)  # two per clock
    return {
        "issue": LANES.get(kind, 0) * clocks or None,
        "matrix": MATRIX_RATE.get(kind, 0) * clocks or None,
        "bandwidth": transfers * getattr(facts, "memory_bus_width", 0) / 8 or None,
        "cache rate": CACHE_RATE.get(kind, 0) * kilohertz * 1e3 or None,
        "cache": getattr(facts, "L2_cache_size", None),
    }
