"""Times of each launch of the fused kernel, host time per call, and a sweep over its tiles, on a GPU.

    python -m benchmarks.launches                        # each launch at the paper's shapes
    python -m benchmarks.launches --tiles --seconds 90   # every tile that compiles, one after the other

The sweep first compiles all tiles at once, a process per core, then times them in one process: the median of the whole
pass that holds the kernel, so only differences between tiles of one kernel have a meaning.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.apart import Ended, apart
from benchmarks.kernel import SHAPES
from fourierformer.errors import SetupError, short
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import exit_on_user_error

CALLS = 10
SETTINGS = [("lm_small", "half"), ("deit_tiny", "half"), ("lm_medium", "half"), ("lm_small", "precise")]
KERNELS = ("forward", "queries", "keys")
TILES = [  # rows, columns, warps, stages
    (rows, columns, warps, stages)
    for stages, rows, columns, warps in itertools.product((1, 2), (64, 128), (32, 64, 128), (4, 8))
    if (rows, columns, warps) not in ((64, 32, 8), (128, 128, 4))
]


class Call:
    """Both passes of the kernel at a shape of the paper, with matched R and values that have a mean."""

    def __init__(self, shape: str, mode: str):
        import torch

        from benchmarks.contestants import Contestant, as_call
        from fourierformer.kernels.sinc import sinc_attention

        batch, heads, tokens, width, causal = SHAPES[shape]
        torch.manual_seed(0)
        q, k, v, doutput = (torch.randn(batch, heads, tokens, width, device="cuda") for _ in range(4))
        radius = torch.full((heads, width), (3 / width) ** 0.5, device="cuda")
        dtype = torch.bfloat16 if mode == "half" else torch.float32
        self.contestant = Contestant(
            lambda *qkvr: sinc_attention(*qkvr, eps=1e-6, causal=causal, backend="fused"), dtype, mode
        )
        self.leaves, self.doutput = as_call([q, k, v + 0.5, doutput, radius], dtype)
        self.output = None

    def forward(self) -> None:
        with self.contestant.precision():
            self.output = self.contestant.function(*self.leaves)

    def backward(self) -> None:
        import torch

        with self.contestant.precision():
            torch.autograd.grad(self.output, self.leaves, self.doutput, retain_graph=True)


def milliseconds(call) -> float:
    from benchmarks.clocks import times_cuda

    call()
    return statistics.median(times_cuda(call, [()], CALLS))


def launches(shape: str, mode: str) -> Iterator[dict]:
    """Yield a row per kernel: launches in one call of both passes, their milliseconds, and the host's time per call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call = Call(shape, mode)
    rows = []
    for name in ("forward", "backward"):
        one = getattr(call, name)
        one()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            one()
        host = (time.perf_counter() - started) / CALLS * 1e3
        torch.cuda.synchronize()
        row = {"shape": shape, "mode": mode, "pass": name, "kernel": "all", "launches": None}
        rows.append(row | {"ms": milliseconds(one), "host ms": host})
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            for _ in range(CALLS):
                one()
            torch.cuda.synchronize()
        for event in seen.key_averages():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                each = {"kernel": event.key[:60], "launches": event.count / CALLS, "host ms": None}
                rows.append(row | each | {"ms": event.self_device_time_total / CALLS / 1e3})
    yield from rows


def with_tile(kernel: str, tile) -> None:
    """Make the tile the only candidate of a kernel, in this process."""
    from fourierformer.kernels.sinc import tiles

    given = tiles.candidates
    tiles.candidates = lambda name, *facts: [tile] if name == kernel else given(name, *facts)


def compile_tile(shape: str, mode: str, kernel: str, numbers: tuple) -> Iterator[str]:
    """Yield 'done', or the reason why the tile does not compile or launch."""
    from fourierformer.kernels.sinc.tiles import Tile

    try:
        with_tile(kernel, Tile(*numbers))
        call = Call(shape, mode)
        call.forward()
        if kernel != "forward":
            call.backward()
        import torch

        torch.cuda.synchronize()
        yield "done"
    except Exception as error:
        yield short(error)


def sweep(seconds: float) -> Iterator[dict]:
    """Yield a row per tile that compiles."""
    deadline = time.monotonic() + seconds
    wanted = [(*setting, kernel, tile) for setting, kernel, tile in itertools.product(SETTINGS, KERNELS, TILES)]
    wanted.sort(key=lambda item: item[3][3])  # one stage first

    def compiled(item: tuple) -> str:
        if time.monotonic() > deadline:
            return "no time"
        try:
            return list(apart(compile_tile, *item, patience=60))[-1]
        except (Ended, IndexError) as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = list(pool.map(compiled, wanted))
    print({text: outcomes.count(text) for text in set(outcomes)}, flush=True)
    ready = [item for item, outcome in zip(wanted, outcomes, strict=True) if outcome == "done"]
    yield from apart(time_tiles, sorted(ready))


def time_tiles(items: list[tuple]) -> Iterator[dict]:
    from fourierformer.kernels.sinc import tiles

    given = tiles.candidates
    for (shape, mode), group in itertools.groupby(items, key=lambda item: item[:2]):
        call = Call(shape, mode)
        for *_, kernel, numbers in group:
            tiles.candidates = given
            call.forward()
            with_tile(kernel, tiles.Tile(*numbers))
            try:
                ms = milliseconds(call.forward if kernel == "forward" else call.backward)
            except Exception:
                traceback.print_exc()
                continue
            yield (
                {"shape": shape, "mode": mode, "kernel": kernel}
                | dict(zip(("rows", "columns", "warps", "stages"), numbers, strict=True))
                | {"ms": ms}
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true", help="the sweep")
    parser.add_argument("--seconds", type=float, default=90, help="the sweep compiles nothing later")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV; default: results/measured/gpu_launches.csv")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SetupError("no GPU: torch sees none")
    out = args.out or MEASURED / ("gpu_tiles.csv" if args.tiles else "gpu_launches.csv")
    head, rows = header("-m benchmarks.launches", machine=machine("cuda")), []
    parts = [sweep(args.seconds)] if args.tiles else [apart(launches, *setting) for setting in SETTINGS]
    for row in itertools.chain(*parts):
        rows.append(row)
        write_csv(out, rows, head)
        print(", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)


if __name__ == "__main__":
    with exit_on_user_error():
        sys.exit(main())
