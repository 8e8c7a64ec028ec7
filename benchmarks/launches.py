"""Times of each launch of the fused kernel, host time per call, and a sweep over its tiles, on a GPU.

    python -m benchmarks.launches                        # each launch at the paper's shapes, backward by both routes
    python -m benchmarks.launches --tiles --seconds 90   # every tile that compiles, one after the other
    python -m benchmarks.launches --tiles --kernel both  # only those of the backward of one pass
    python -m benchmarks.launches --host                 # without a GPU: the host's share, up to the call of the driver

Kernels are first compiled all at once, a process per core. The sweep then times its tiles in one process: the median of
the whole pass that holds the kernel, so only differences between tiles of one kernel have a meaning.
"""

import contextlib
import functools
import itertools
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from benchmarks.apart import Ended, apart
from benchmarks.kernel import SHAPES
from fourierformer.errors import SetupError, short
from fourierformer.files import write_csv
from fourierformer.provenance import MEASURED, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error

CALLS = 10
SETTINGS = [("lm_small", "half"), ("deit_tiny", "half"), ("lm_medium", "half"), ("lm_small", "precise")]
KERNELS = ("forward", "both", "queries", "keys")
VARIANTS = [  # rows, columns, warps, stages, coordinates per step
    (*tile, stages, step)
    for stages, step in ((2, 4), (3, 4), (3, 2), (2, 2), (1, 4), (4, 4), (2, 8), (3, 8), (1, 8))
    for tile in ((64, 64, 4), (64, 128, 4), (128, 128, 8), (128, 64, 4), (64, 32, 4), (128, 64, 8), (64, 64, 8))
]


class Call:
    """Both passes of the kernel at a shape of the paper, with a moderate R and values that have a mean."""

    def __init__(self, shape: str, mode: str):
        import torch

        from benchmarks.contestants import Contestant, as_call, moderate_radius
        from fourierformer.kernels.sinc import sinc_attention

        batch, heads, tokens, width, causal = SHAPES[shape]
        torch.manual_seed(0)
        q, k, v, doutput = (torch.randn(batch, heads, tokens, width, device="cuda") for _ in range(4))
        radius = torch.full((heads, width), moderate_radius(width), device="cuda")
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
    for name, count in (("forward", 1), ("backward, one pass", 1), ("backward, two passes", 2)):
        one = in_passes(count, call.forward if name == "forward" else call.backward)
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


class StandIn:
    """A driver of Triton that launches nothing: kernels are compiled for compute capability 9.0, and found again."""

    launched = 0
    launcher_cls = staticmethod(lambda source, metadata: StandIn.launch)
    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 * 1024},
        load_binary=lambda *kernel: (1, 1, 0, 0, 1024),  # module, function, registers, spills, most threads
        unload_module=lambda module: None,
    )
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

    @classmethod
    def launch(cls, *arguments) -> None:
        cls.launched += 1

    @staticmethod
    def get_current_target():
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def host(n: int = 30, repeats: int = 60) -> Iterator[dict]:
    """Yield a row per mode and pass: launches, and microseconds of the processor per call, the least of many means.

    The tensors are small and on the CPU: the driver, CUDA's allocator and the change of the device are not in the time.
    """
    import torch
    from triton.runtime import driver

    from fourierformer.kernels import sinc

    def no_obstacle(q, width: int = 0) -> None:
        """In place of the refusal of tensors on a CPU."""

    driver.set_active(StandIn())
    for mode, dtype in {"half": torch.bfloat16, "precise": torch.float32}.items():
        leaves = [torch.zeros(2, 2, 64, 16, dtype=dtype, requires_grad=True) for _ in range(3)]
        leaves.append(torch.ones(2, 16, requires_grad=True))
        forward = functools.partial(sinc.sinc_attention, *leaves, eps=1e-6, causal=True, backend="fused")
        with mock.patch.object(sinc, "why_not_fused", no_obstacle):
            output = forward()
            backward = functools.partial(torch.autograd.grad, output, leaves, output, retain_graph=True)
            for name, call in (("forward", forward), ("backward", backward)):
                call()
                before, means = StandIn.launched, []
                for _ in range(repeats):
                    started = time.process_time()
                    for _ in range(n):
                        call()
                    means.append((time.process_time() - started) / n * 1e6)
                launched = (StandIn.launched - before) / n / repeats
                yield {"mode": mode, "pass": name, "launches": launched, "us": min(means)}


def in_passes(count: int, call: Callable[[], None]) -> Callable[[], None]:
    """The same call, with so many passes over the pairs in its backward."""
    from fourierformer.kernels.sinc import tiles

    return mock.patch.object(tiles, "ONE_PASS_KEYS", math.inf if count == 1 else 0)(call)


@contextlib.contextmanager
def variant_of(kernel: str, variant: tuple | None) -> Iterator[None]:
    """Inside, a kernel's launches for heads of 16 features have the variant's tile; with None the one of the table."""
    from fourierformer.kernels.sinc import op, tiles

    if variant is None:
        yield
        return
    chosen, given = tiles.Tile(*variant), tiles.tile

    def tile(name: str, width: int, nodes: int, *facts, **more) -> tiles.Tile:
        return chosen if (name, nodes) == (kernel, 16) else given(name, width, nodes, *facts, **more)

    fresh = {"forward_plan": functools.cache(op.ForwardPlan), "backward_plan": functools.cache(op.BackwardPlan)}
    with mock.patch.object(tiles, "tile", tile), mock.patch.multiple(op, **fresh):  # made plans have chosen tiles
        yield


def compile_variants(items: list[tuple], deadline: float) -> Iterator[tuple]:
    """Yield (item, 'done' or the reason why it does not compile or launch)."""
    import torch

    calls: dict[tuple, Call] = {}
    for item in items:
        if time.monotonic() > deadline:
            return
        *setting, kernel, variant = item
        try:
            call = calls[tuple(setting)] = calls.get(tuple(setting)) or Call(*setting)
            with variant_of(kernel, variant):
                call.forward()
                if kernel != "forward":
                    in_passes(1 if kernel == "both" else 2, call.backward)()
            torch.cuda.synchronize()
            yield item, "done"
        except Exception as error:
            yield item, short(error)


def sweep(seconds: float, kernels: Sequence[str]) -> Iterator[dict]:
    """Yield a row per variant that compiles."""
    wanted = [(*setting, kernel, v) for v in VARIANTS for setting in SETTINGS for kernel in kernels if fits(kernel, v)]
    done = compile_all(wanted, time.monotonic() + seconds)
    yield from apart(time_variants, sorted(done, key=str))


def compile_all(wanted: list[tuple], deadline: float) -> list[tuple]:
    """Compile by a process per core, into the cache on disk; return the items that were compiled."""
    workers = len(os.sched_getaffinity(0))
    outcomes = []

    def compiled(items: list[tuple]) -> None:
        try:
            for outcome in apart(compile_variants, items, deadline, patience=100):
                outcomes.append(outcome)
        except Ended as error:
            print(error, flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(compiled, [wanted[first::workers] for first in range(workers)]))
    texts = [text for _, text in outcomes]
    print(len(wanted), {text: texts.count(text) for text in set(texts)}, flush=True)
    return [item for item, text in outcomes if text == "done"]


def fits(kernel: str, variant: tuple) -> bool:
    """Parts of dq are of blocks of as many keys."""
    from fourierformer.kernels.sinc.tiles import BACKWARD_ROWS

    return kernel != "both" or variant[0] == BACKWARD_ROWS


def time_variants(items: list[tuple]) -> Iterator[dict]:
    for setting, group in itertools.groupby(items, key=lambda item: item[:2]):
        call = Call(*setting)
        for *_, kernel, variant in group:
            try:
                with variant_of(kernel, variant):
                    call.forward()
                    backward = in_passes(1 if kernel == "both" else 2, call.backward)
                    ms = milliseconds(call.forward if kernel == "forward" else backward)
            except Exception:
                traceback.print_exc()
                continue
            names = ("rows", "columns", "warps", "stages", "step")
            yield (
                dict(zip(("shape", "mode"), setting, strict=True))
                | {"kernel": kernel}
                | dict(zip(names, variant, strict=True))
                | {"ms": ms}
            )


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--tiles", action="store_true", help="the sweep")
    parser.add_argument("--kernel", action="append", choices=KERNELS, help="of the sweep; default: all")
    parser.add_argument("--host", action="store_true", help="the host's time, by a driver that launches nothing")
    parser.add_argument("--seconds", type=float, default=90, help="the sweep compiles nothing later")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV; default: results/measured/gpu_launches.csv")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available() and not args.host:
        raise SetupError(
            "no GPU: torch sees none. --host needs none; python -m benchmarks.kernel --device cpu times a CPU"
        )
    name = "host_launches.csv" if args.host else "gpu_tiles.csv" if args.tiles else "gpu_launches.csv"
    out, rows = args.out or MEASURED / name, []
    head = header("-m benchmarks.launches", machine=machine("cpu" if args.host else "cuda"))
    if args.host:
        parts = [host()]
    elif args.tiles:
        parts = [sweep(args.seconds, args.kernel or KERNELS)]
    else:
        compile_all([(*setting, kernel, None) for setting in SETTINGS for kernel in ("both", "queries")], math.inf)
        parts = [apart(launches, *setting) for setting in SETTINGS]
    failed = 0
    for part in parts:
        try:
            for row in part:
                rows.append(row)
                write_csv(out, rows, head)
                print(", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
        except Ended as error:  # the other settings are still measured
            print(error, flush=True)
            failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    with exit_on_user_error():
        sys.exit(main())
