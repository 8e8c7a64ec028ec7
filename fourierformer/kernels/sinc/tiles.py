"""Tile sizes of the fused kernels: candidates, and the choice for a launch."""

import dataclasses
import functools
from typing import Any

import torch
import triton

from fourierformer.kernels.sinc.factors import MOST_ROWS

MOST_ROWS = MOST_ROWS.value
BACKWARD_ROWS = 64  # rows of every tile of the backward at least


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    warps: int
    stages: int = 1  # all loads are small, and there is little to prefetch

    def programs(self, heads: int, rows: int) -> int:
        return heads * triton.cdiv(rows, self.rows)

    def options(self) -> dict[str, int]:
        return {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.warps, "num_stages": self.stages}


FEW_ROWS = 16  # up to so many queries, one against a window for example, get smaller tiles


def few_rows(width: int, nodes: int, log: bool, major: int) -> Tile:
    """The tile for up to FEW_ROWS queries: by disassembly, half mode spills no registers on 8.0 and 9.0."""
    crowded = log and width > 32
    if nodes == 0 or (major == 8 and nodes == 16 and crowded):
        return Tile(FEW_ROWS, 64, 4)
    small = major == 8 or (nodes == 32 and crowded)
    return Tile(FEW_ROWS, 32 if small else 64, 2)


def candidates(kernel: str, width: int, nodes: int, precise: bool, log: bool, major: int) -> list[Tile]:
    """Tiles for `kernel` (forward, or queries or keys of the backward) on compute capability `major`.

    The first has the fewest instructions per pair of tokens without spilled registers, by disassembly and not by timing
    (scripts/inspect_kernel.py). The others are for few heads and short sequences, see `choose`.
    """
    if major == 9 and nodes and width <= 64:
        if kernel == "forward":
            return _forward_on_hopper(width, nodes, precise, log)
        return _backward_on_hopper(kernel == "keys", width, nodes, precise)
    plain = nodes == 16 and not precise
    if kernel == "forward":
        large = plain and width <= 64 and (major == 8 or not log)
        if large and width > 32 and not log:  # 64 columns spill
            return [Tile(64, 32, 4)]
        return [Tile(64, 64 if large else 32 if major > 8 else 16, 4)]
    if nodes and not precise and width <= 32 and major > 8:
        return [Tile(64, 32, 8) if width % 4 else Tile(64, 64, 4)]
    if plain and width <= 32:
        return [Tile(64, 32, 4)]
    return [Tile(64, 16, 4 if width <= 32 or major == 8 else 8)]


def _forward_on_hopper(width: int, nodes: int, precise: bool, log: bool) -> list[Tile]:
    if log:
        return [Tile(64, 32 if precise else 64, 4)]
    if width <= 16 and not precise:
        return [Tile(128, 128, 8), Tile(64, 64, 4)]
    if width > 32 and nodes == 32 and not precise:  # 128 rows spill
        return [Tile(64, 64, 4)]
    return [Tile(128, 64, 8), Tile(64, 64, 4)]


def _backward_on_hopper(keys: bool, width: int, nodes: int, precise: bool) -> list[Tile]:
    if nodes == 32 and precise:
        return [Tile(64, 32, 4)] if width <= 16 or not keys else [Tile(64, 16, 4)]
    if precise and width > 32 and keys:
        return [Tile(64, 16, 4)]
    if width % 4:  # such rows are loaded number by number, and every address takes registers
        return [Tile(64, 32, 4)]
    return [Tile(128, 64, 8), Tile(64, 64, 4)] if width <= 32 and nodes == 16 else [Tile(128, 64, 8)]


def chunk(kernel: str, tile: Tile, stored: int, log: bool, major: int) -> int:
    """Coordinates per step of the loop over coordinates; the code of a step is unrolled.

    More take fewer instructions, until registers spill. Never all, or the compiler keeps the rows' features in
    registers.
    """
    if kernel != "forward" or log or tile.rows == FEW_ROWS:
        return 4
    counts = (16, 8, 4) if major == 9 else (8, 4)
    return next(count for count in counts if stored % count == 0 and (count < stored or count == 4))


def launch(kernel: triton.JITFunction, heads: int, rows: int, *arguments: object, **settings: Any) -> None:
    """Run `kernel`: one program per block of rows of each head, with the tile for their number."""
    device = next(argument.device for argument in arguments if isinstance(argument, torch.Tensor))
    major, processors = _facts(device)
    name = {None: "forward", False: "queries", True: "keys"}[settings.get("KEYS")]
    tiles = candidates(name, settings["WIDTH"], settings["NODES"], settings["PRECISE"], settings["LOG"], major)
    if name == "forward" and rows <= FEW_ROWS:
        tiles = [few_rows(settings["WIDTH"], settings["NODES"], settings["LOG"], major)]
    tile = choose(tiles, heads, rows, processors)
    settings["CHUNK"] = chunk(name, tile, settings["STORED"], settings["LOG"], major)
    settings["enable_fp_fusion"] = True  # sums of products in one instruction; not the default of later Tritons
    kernel[(tile.programs(heads, rows),)](*arguments, **settings, **tile.options())


def choose(tiles: list[Tile], heads: int, rows: int, processors: int) -> Tile:
    """The first tile that gives every multiprocessor a program, else the last. Not by timing, which may be of heads
    whose programs return at once (TRIED.md)."""
    return next((tile for tile in tiles if tile.programs(heads, rows) >= processors), tiles[-1])


@functools.cache
def _facts(device: torch.device) -> tuple[int, int]:
    """Major compute capability, and the number of multiprocessors; (9, 1) in Triton's interpreter."""
    if device.type != "cuda":
        return 9, 1
    facts = torch.cuda.get_device_properties(device)
    return facts.major, facts.multi_processor_count
