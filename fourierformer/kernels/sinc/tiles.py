"""Tile sizes of the fused kernels, and their launches."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from fourierformer.kernels.sinc import TENSOR_MEMORY
from fourierformer.kernels.sinc.factors import MOST_ROWS

MOST_ROWS = MOST_ROWS.value
BACKWARD_ROWS = 64  # rows of every tile of the backward
# The backward takes one pass for up to so many keys, two for more: one pass needs 4 bytes per query, coordinate and
# block of keys, with 1,024 keys as many as the queries' features.
ONE_PASS_KEYS = 1024
FEW_ROWS = 16  # up to so many queries, one against a window for example, get smaller tiles


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    warps: int
    stages: int = 1  # of the pipeline that loads features while earlier ones are multiplied
    # Coordinates per step of the loop over coordinates, whose code is unrolled. Never all, or the compiler keeps the
    # rows' features in registers.
    step: int = 4

    def programs(self, heads: int, rows: int) -> int:
        return heads * -(-rows // self.rows)

    def sizes(self) -> dict[str, int]:
        return {"ROWS": self.rows, "COLUMNS": self.columns, "CHUNK": self.step}

    def options(self) -> dict[str, int]:
        """Of Triton's compiler."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def one_pass(keys: int) -> bool:
    """Whether the backward computes all gradients in one pass over the pairs."""
    return keys <= ONE_PASS_KEYS


@functools.cache
def tile(kernel: str, width: int, nodes: int, precise: bool, log: bool, major: int, few: bool = False) -> Tile:
    """The tile for `kernel` on compute capability `major`: forward, both (a backward of one pass), or queries or keys
    (of two passes). `few`: for up to FEW_ROWS queries of the forward.

    On 9.0 with 16 features by timing on an H200 (benchmarks/launches.py). Elsewhere by disassembly
    (scripts/inspect_kernel.py): few instructions per pair of tokens, and few or no spilled registers.
    """
    if few:
        return _few_rows(width, nodes, log, major)
    if major == 9 and nodes and width <= 64:
        return _on_hopper(kernel, width, nodes, precise, log)
    if nodes == 16 and not precise and width <= 64:
        return _in_tensor_memory(kernel, width, log) if major in TENSOR_MEMORY else _in_registers(kernel, width)
    if kernel == "forward":
        return Tile(64, 32 if major > 8 else 16, 4, step=_step_of_forward(width, log))
    if nodes and not precise and width <= 32 and major > 8:
        return Tile(64, 32, 8) if width % 4 else Tile(64, 64, 4)
    return Tile(64, 16, 4 if width <= 32 or major == 8 else 8)


def _step_of_forward(width: int, log: bool) -> int:
    """8 where that divides the coordinates and leaves more than one step."""
    return 8 if not log and width > 8 and -(-width // 4) % 2 == 0 else 4


def _on_hopper(kernel: str, width: int, nodes: int, precise: bool, log: bool) -> Tile:
    if nodes == 32:
        return Tile(64, 32 if precise else 64, 4, stages=2, step=2 if kernel == "both" else 4)
    if kernel == "forward":
        if log or precise:
            return Tile(64, 64, 4, stages=3, step=4 if log else 2)
        return Tile(64, 128, 4, stages=3)
    if width % 4:  # such rows are loaded number by number, and every address takes registers
        return Tile(64, 32, 4)
    return Tile(64, 64, 4, stages=3, step=2)


def _in_registers(kernel: str, width: int) -> Tile:
    """Half mode where a tensor core leaves products in registers: 8.0 to 8.9, and 12.0. One pass spills up to 71 of
    them, outside of its loops over coordinates."""
    if kernel == "forward":
        return Tile(64, 64, 4, stages=3)
    if width % 4:  # such rows are loaded number by number, and every address takes registers
        return Tile(64, 32 if width <= 32 else 16, 4)
    if kernel == "both":
        return Tile(64, 32, 4, stages=2, step=2)
    return Tile(64, 64, 4, stages=2, step=2) if width <= 32 else Tile(64, 32, 4, stages=2)


def _in_tensor_memory(kernel: str, width: int, log: bool) -> Tile:
    """Half mode on 10.0. Triton 3.9 cannot compile two passes with stages there."""
    if kernel == "forward":
        return Tile(64, 32 if log or width > 32 else 64, 4, step=_step_of_forward(width, log))
    if kernel == "both":
        return Tile(64, 64 if width <= 32 else 32, 8, stages=2, step=2)
    if width > 32:
        return Tile(64, 16, 8, step=2)
    return Tile(64, 32, 8, step=2) if width % 4 else Tile(64, 64, 4, step=2)


def _few_rows(width: int, nodes: int, log: bool, major: int) -> Tile:
    """By disassembly, half mode spills no registers on 8.0 and 9.0, but for 5 on 8.0 at D 32 with eps = 0."""
    crowded = log and width > 32
    if nodes == 0 or (major == 8 and nodes == 16 and crowded):
        return Tile(FEW_ROWS, 64, 4)
    small = major == 8 or (nodes == 32 and crowded)
    return Tile(FEW_ROWS, 32 if small else 64, 2)


class Launch:
    """A kernel with its grid, numbers and settings, for tensors of the same types and alignments at every call.

    Triton looks up the compiled kernel by all its arguments, which takes the host several times as long as the launch
    itself: what the first call finds is kept. (Triton's interpreter finds nothing.)
    """

    def __init__(self, kernel: triton.JITFunction, programs: int, numbers: Sequence[float], settings: dict[str, Any]):
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.numbers, self.settings = tuple(numbers), settings
        # a compiled kernel takes its constants as well, in the order of the parameters
        self.rest = (*self.numbers, *(settings[name] for name in kernel.arg_names if name in settings))
        self.compiled: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        if self.compiled is None:
            self.compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.settings)
        else:
            self.compiled[self.grid](*tensors, *self.rest)


def launch(
    kernel: triton.JITFunction, name: str, heads: int, rows: int, numbers: Sequence[float], major: int, **settings: Any
) -> Launch:
    """`kernel` with the tile of `name`: one program per block of rows of each head."""
    facts = settings["WIDTH"], settings["NODES"], settings["PRECISE"], settings["LOG"], major
    chosen = tile(name, *facts, few=name == "forward" and rows <= FEW_ROWS)
    settings["enable_fp_fusion"] = True  # sums of products in one instruction; not the default of later Tritons
    return Launch(kernel, chosen.programs(heads, rows), numbers, settings | chosen.sizes() | chosen.options())


@functools.cache
def major_of(device: torch.device) -> int:
    """Major compute capability; 9 in Triton's interpreter."""
    return torch.cuda.get_device_properties(device).major if device.type == "cuda" else 9
