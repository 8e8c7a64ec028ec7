"""Tile sizes of the fused kernels: the candidates, and which of them serves a launch."""

import dataclasses
import functools

import torch
import triton

from fourierformer.kernels.sinc.factors import INTERPRETED, MOST_ROWS

MOST_ROWS = MOST_ROWS.value
BACKWARD_ROWS = 64  # rows of every tile of the backward at least


@dataclasses.dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    warps: int

    def config(self) -> triton.Config:
        # One stage: all loads are small, and there is nothing to prefetch.
        return triton.Config({"ROWS": self.rows, "COLUMNS": self.columns}, num_warps=self.warps, num_stages=1)


def few_rows(precise: bool) -> Tile:
    """Forward for one query against a window, and up to 16."""
    return Tile(16, 64, 4) if precise else Tile(16, 128, 8)


def candidates(kernel: str, width: int, nodes: int, precise: bool, major: int) -> list[Tile]:
    """For `kernel` forward or backward on compute capability `major`. The first is taken without timing.

    By disassembly, not by timing: fewest instructions per pair of tokens without spilled registers
    (scripts/inspect_kernel.py).
    """
    plain = nodes == 16 and not precise
    if kernel == "forward":
        if not plain or width > 64:
            return [Tile(64, 32, 4)] if major > 8 else [Tile(64, 16, 4)]
        return [Tile(128, 64, 8), Tile(64, 64, 4)] if major == 9 else [Tile(64, 64, 4)]
    if major == 9 and plain and width <= 16:
        return [Tile(64, 64, 4), Tile(64, 32, 4)]
    if major == 9 and nodes == 16 and (not precise or width <= 32):
        return [Tile(64, 32, 4 if width <= 64 else 8)]
    return [Tile(64, 16, 4 if width <= 32 or major == 8 else 8)]


def chunk(kernel: str) -> int:
    """Coordinates whose code is written out one after the other, in a loop over the rest."""
    return 4 if kernel == "forward" else 2


def launch(kernel: triton.JITFunction, heads: int, rows: int, *arguments: object, **settings: object) -> None:
    """One program per block of rows of each head.

    On a GPU the candidates are timed at the first launch of a kind; not where results must be the same in every run.
    """
    device = next(argument.device for argument in arguments if isinstance(argument, torch.Tensor))
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    tiles = candidates(kernel.__name__, settings["STORED"], settings["NODES"], settings["PRECISE"], major)
    settings["CHUNK"] = chunk(kernel.__name__)
    if kernel.__name__ == "forward" and rows <= 16:
        tiles = [few_rows(settings["PRECISE"])]
    settings["enable_fp_fusion"] = True  # sums of products in one instruction; later versions of Triton want it said
    if len(tiles) == 1 or INTERPRETED.value or torch.are_deterministic_algorithms_enabled():
        config = tiles[0].config()
        grid = (heads * triton.cdiv(rows, tiles[0].rows),)
        kernel[grid](*arguments, **settings, **config.all_kwargs())
    else:
        tuned = _tuned(kernel, tuple(tiles), settings["STORED"], triton.next_power_of_2(rows))
        tuned[lambda chosen: (heads * triton.cdiv(rows, chosen["ROWS"]),)](*arguments, **settings)


@functools.cache
def _tuned(kernel: triton.JITFunction, tiles: tuple[Tile, ...], width: int, rows: int) -> triton.runtime.Autotuner:
    """One table of timings per kernel, width and order of magnitude of rows, not one per length."""
    key = [name for name in ("V_LOADED", "CAUSAL", "LOG", "PRECISE", "NODES", "KEYS") if name in kernel.arg_names]
    return triton.autotune([tile.config() for tile in tiles], key=key)(kernel)
