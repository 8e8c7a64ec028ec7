"""Time and memory of Fourier attention against the printed formula and against softmax attention, on a GPU or a CPU.

    python -m benchmarks.kernel                             # four shapes
    python -m benchmarks.kernel --shape lm_small --batch 4  # a shape of the paper, fewer sequences
    python -m benchmarks.kernel --peer module:function      # f(q, k, v, radius (H, D) in float32)
    python -m benchmarks.kernel --device cpu --threads 1 --threads 2 --csv results/measured/kernel_cpu.csv

Parity comes first, on the first sequence, its first heads and last 512 tokens: a contestant that is wrong gets no time,
and the exit status is 1. Memory is what one call needs beyond its inputs. On a GPU it is the allocator's peak; on a CPU
a dispatch mode sees every tensor that an operation returns, adds its bytes when the storage is new, takes them off when
it dies, and keeps the peak (output, gradients and what the backward saves included, scratch inside an operation not).
"""

import argparse
import importlib
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.shapes import SHAPES
from fourierformer.errors import SetupError, did_you_mean
from fourierformer.files import write_csv
from fourierformer.provenance import describe, short_commit

DEFAULT = {
    "cpu": ["lm_tiny", "default_causal", "default", "wide_causal"],
    "cuda": ["lm_small", "lm_medium", "deit_tiny", "long"],
}
DTYPES = ("float32", "bfloat16", "float16")


def cell(value: object) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def print_table(shape: str, rows: list[dict]) -> None:
    batch, (_, heads, tokens, width, causal) = rows[0]["batch"], SHAPES[shape]
    print(f"{shape}: B {batch}, H {heads}, N {tokens}, D {width}, {'causal' if causal else 'full'}")
    shown = [c for c in rows[0] if c not in ("shape", "batch") and any(row[c] is not None for row in rows)]
    table = [shown, *([cell(row[column]) for column in shown] for row in rows)]
    for line in table:
        print("  ".join(text.rjust(max(len(other[i]) for other in table)) for i, text in enumerate(line)), flush=True)


def print_notes(limit: dict[str, float | None]) -> None:
    from benchmarks.floors import INSTRUCTIONS_PER_FEATURES, INSTRUCTIONS_PER_PAIR

    print(
        "Median times, launches included. dtype is that of q, k, v and output: for the float32 class always float32.\n"
        "of floor = floor / time, floor = features + pairs, in the backward once more, each the longest of its times:\n"
        "  features: instructions / issue rate, bytes / bandwidth, for 2 B H N D numbers\n"
        "  pairs: instructions / issue rate, multiply-adds / matrix rate, bytes / bandwidth, where\n"
        "    bytes = size of the dtype x B H N D x 4 (q, k, v, out), in the backward x 8 (also dout, dq, dk, dv),\n"
        "            and features, in the backward twice; of features what is beyond the second-level cache\n"
        "    instructions = B H x pairs x instructions per pair; pairs = N^2, causal N (N + 1) / 2\n"
        f"  issue rate = multiprocessors x lanes x highest clock = {cell(limit['issue'])} / s\n"
        f"  matrix rate = {cell(limit['matrix'])} float16 multiply-adds / s, cache = {cell(limit['cache'])} bytes\n"
        f"  bandwidth = 2 x memory clock x bus width = {cell(limit['bandwidth'])} bytes / s\n"
        f"  instructions per pair: {INSTRUCTIONS_PER_PAIR}\n"
        f"  per token and coordinate of features: {INSTRUCTIONS_PER_FEATURES}"
    )


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    import torch

    origin, _ = describe()
    return {
        "radius": args.radius,
        "scale": args.scale,
        "eps": args.eps,
        "torch": torch.__version__,
        "triton": origin["versions"]["triton"],
        "machine": f"{origin['cpu']}, {origin['cpus']} cores",
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "commit": short_commit(origin),
    }


def peer(text: str) -> tuple[str, Callable]:
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        inspect.signature(function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not module:function: {error}") from None
    return text, function


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"on a CPU {', '.join(DEFAULT['cpu'])}, on a GPU {', '.join(DEFAULT['cuda'])}"
    parser.add_argument("--shape", action="append", choices=SHAPES, help=f"may be given several times; {default}")
    parser.add_argument("--batch", type=int, help="sequences, instead of the shape's own number")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=DTYPES, help="of q, k, v; default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--radius", type=float, default=2.0)
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of queries and keys")
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, help="default: 15 on a CPU, 20 on a GPU")
    parser.add_argument("--threads", type=int, action="append", help="of a CPU; may be given several times")
    parser.add_argument("--contestant", action="append", help="only these, and softmax; may be given several times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=peer,
        help="module:function on PYTHONPATH; gets causal=, eps= if it has them",
    )
    parser.add_argument("--budget-seconds", type=float, default=480, help="nothing is started later than this")
    parser.add_argument("--csv", type=Path, help="write the rows there, with the settings and the machine")
    args = parser.parse_args()
    import torch  # after --help

    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    return args


def complete(args: argparse.Namespace) -> None:
    """What depends on the device, and the clock that starts now."""
    import torch

    from benchmarks.floors import limits
    from fourierformer.kernels.sinc import why_not_fused

    gpu = args.device == "cuda"
    args.shape = args.shape or DEFAULT[args.device]
    args.dtype = getattr(torch, args.dtype or ("bfloat16" if gpu else "float32"))
    args.repeats = args.repeats or (20 if gpu else 15)
    args.threads = args.threads or [torch.get_num_threads()]
    args.peer = dict(args.peer)
    args.without_fused = why_not_fused(torch.empty(0, device=args.device, dtype=args.dtype))
    if not gpu and args.without_fused is None:
        args.without_fused = "Triton's interpreter says nothing about its time"
    args.limits = limits(args.device)
    args.deadline = time.monotonic() + args.budget_seconds


def check(args: argparse.Namespace) -> None:
    """Before minutes of measuring."""
    from benchmarks.contestants import contestants

    known = contestants(argparse.Namespace(**vars(args) | {"contestant": None}), causal=True)
    for name in args.contestant or []:
        if name not in known:
            raise SetupError(f"no contestant '{name}' here{did_you_mean(name, known)}: choose from {', '.join(known)}")
    if args.csv and not os.access(args.csv.parent, os.W_OK):
        raise SetupError(f"--csv {args.csv}: {args.csv.parent} is no folder that can be written. Choose another one")


def main() -> bool:
    args = arguments()
    import torch

    from benchmarks.contestants import bench

    complete(args)
    check(args)
    settings = settings_of(args)
    print(", ".join(f"{name} {cell(value)}" for name, value in settings.items()))
    if args.without_fused:
        print(f"fused: left out: {args.without_fused}")
    rows, good = [], True
    for threads, shape in itertools.product(args.threads, args.shape):
        torch.set_num_threads(threads)
        of_shape, right = bench(shape, args)
        rows, good = rows + [row | {"threads": threads} for row in of_shape], good and right
        if of_shape:
            print_table(shape, rows[-len(of_shape) :])
        if rows and args.csv:
            write_csv(args.csv, [row | settings for row in rows])
    if args.device == "cuda":
        print_notes(args.limits)
    return good


if __name__ == "__main__":
    try:
        sys.exit(0 if main() else 1)
    except SetupError as error:  # not by runs.launch, which needs Hydra
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
