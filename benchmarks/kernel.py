"""Time and memory of Fourier attention against the printed formula and against softmax attention, on a GPU or a CPU.

    python -m benchmarks.kernel                             # five shapes of a CPU, four of a GPU
    python -m benchmarks.kernel --shape lm_small --batch 4  # a shape of the paper, fewer sequences
    python -m benchmarks.kernel --peer module:function      # f(q, k, v, radius (H, D) in float32)
    python -m benchmarks.kernel --device cpu --threads 1 --threads 2 --csv results/measured/kernel_cpu.csv

Parity comes first, on the first sequence, its first heads and last 512 tokens: a contestant that is wrong gets no time,
and the exit status is 1. Memory is the peak of one call beyond its inputs (benchmarks/clocks.py). On a GPU every
contestant has its own process at every shape, so that an error affects no other. Rows are written one by one.
"""

import argparse
import importlib
import inspect
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.apart import APART, Ended, apart
from fourierformer.errors import SetupError, did_you_mean
from fourierformer.files import write_csv
from fourierformer.provenance import describe, short_commit
from fourierformer.runs.console_io import Parser, exit_on_user_error

SHAPES = {  # name: (batch, heads, tokens, width, causal); paper Table 1, authors' DeiT code
    "lm_tiny": (16, 4, 64, 16, True),
    "default": (4, 8, 256, 16, False),
    "default_causal": (4, 8, 256, 16, True),
    "lm_small": (96, 8, 256, 16, True),
    "lm_medium": (56, 8, 384, 32, True),
    "deit_tiny": (256, 3, 197, 64, False),
    "wide": (4, 3, 197, 64, False),
    "wide_causal": (1, 8, 1024, 64, True),
    "long": (1, 8, 16384, 64, True),
}
DEFAULT = {
    "cpu": ["lm_tiny", "default_causal", "default", "wide", "wide_causal"],
    "cuda": ["lm_small", "lm_medium", "deit_tiny", "long"],
}
DTYPES = ("float32", "bfloat16", "float16")
RATIO_TO = {"softmax": "x softmax", "reference": "x reference", "direct, compiled": "x direct"}


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
    print(
        "Median times, launches included; for the float32 class q, k, v and output are always float32.\n"
        f"of floor = floor / time (benchmarks/floors.py), at {cell(limit['issue'])} instructions, "
        f"{cell(limit['matrix'])} float16 multiply-adds, {cell(limit['bandwidth'])} bytes of memory and "
        f"{cell(limit['cache rate'])} bytes of its cache per second; that holds {cell(limit['cache'])} bytes"
    )


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    import torch

    origin, _ = describe()
    settings = {
        "radius": "moderate" if args.radius is None else args.radius,
        "scale": args.scale,
        "eps": args.eps,
        "torch": torch.__version__,
    }
    settings |= {"triton": origin["versions"]["triton"], "machine": f"{origin['cpu']}, {origin['cpus']} cores"}
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    return settings | {"gpu": gpu, "commit": short_commit(origin)}


def peer(text: str) -> tuple[str, Callable]:
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        inspect.signature(function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not module:function: {error}") from None
    return text, function


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    default = f"on a CPU {', '.join(DEFAULT['cpu'])}, on a GPU {', '.join(DEFAULT['cuda'])}"
    parser.add_argument("--shape", action="append", choices=SHAPES, help=f"may be given several times; {default}")
    parser.add_argument("--batch", type=int, help="sequences, instead of the shape's own number")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=DTYPES, help="of q, k, v; default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--radius", type=float, help="default: mean log-weight -4 at every width (moderate_radius)")
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of queries and keys")
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, help="default: 15 on a CPU, 20 on a GPU")
    parser.add_argument("--threads", type=int, action="append", help="of a CPU; may be given several times")
    parser.add_argument("--contestant", action="append", help="only these, and softmax; may be given several times")
    parser.add_argument("--seed", type=int, default=0)
    peers = "module:function on PYTHONPATH; gets causal=, eps= if it has them"
    parser.add_argument("--peer", action="append", default=[], type=peer, help=peers)
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
    """Fill in defaults that depend on the device, and the deadline."""
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
        args.without_fused = "a time in Triton's interpreter is meaningless"
    args.limits = limits(args.device)
    args.deadline = time.monotonic() + args.budget_seconds


def check(args: argparse.Namespace) -> None:
    """Refuse unknown contestants and a CSV that cannot be written, before minutes of measuring."""
    from benchmarks.contestants import contestants

    known = contestants(argparse.Namespace(**vars(args) | {"contestant": None}), causal=True)
    for name in args.contestant or []:
        if name not in known:
            raise SetupError(f"no contestant '{name}' here{did_you_mean(name, known)}: choose from {', '.join(known)}")
    if args.csv and not os.access(args.csv.parent, os.W_OK):
        raise SetupError(f"--csv {args.csv}: {args.csv.parent} is no folder that can be written. Choose another one")


def bench(shape: str, threads: int, args: argparse.Namespace) -> Iterator[dict | str]:
    """Yield a row of numbers for every contestant and pass at a shape, or the message of its error."""
    from benchmarks.contestants import attempts, contestants

    dims = (args.batch or SHAPES[shape][0], *SHAPES[shape][1:])
    for name in contestants(args, causal=dims[4]):
        call = attempts, name, shape, dims, threads, args
        try:
            yield from apart(*call) if args.device in APART else attempts(*call[1:])
        except Ended as error:
            yield f"{name}: FAILS at {shape}: it {error}"


def with_ratios(rows: list[dict]) -> list[dict]:
    """The rows of a shape with ratios to the rows of RATIO_TO; None where such a row does not exist (yet)."""
    compared = []
    for row in rows:
        compared.append(dict(row))
        for base, label in RATIO_TO.items():
            against = next((r for r in rows if (r["name"], r["what"]) == (base, row["what"])), None)
            if f"time {label}" not in row:  # on a CPU taken in turns with softmax
                compared[-1][f"time {label}"] = row["ms"] / against["ms"] if against else None
            sizes = row["MiB"], against["MiB"] if against else None
            compared[-1][f"memory {label}"] = sizes[0] / sizes[1] if all(sizes) else None
    return compared


def main() -> bool:
    args = arguments()
    complete(args)
    check(args)
    settings = settings_of(args)
    print(", ".join(f"{name} {cell(value)}" for name, value in settings.items()))
    if args.without_fused:
        print(f"fused: left out: {args.without_fused}")
    done, good = [], True
    for threads, shape in itertools.product(args.threads, args.shape):
        rows, table = [], []
        for item in bench(shape, threads, args):
            if isinstance(item, str):
                print(item, flush=True)
                good = good and "out of memory" in item
                continue
            rows.append(item)
            table = [row | {"threads": threads} for row in with_ratios(rows)]
            if args.csv:  # after every row: measured rows survive a crash
                write_csv(args.csv, [row | settings for row in done + table])
        if table:
            print_table(shape, table)
        done += table
    if args.device == "cuda":
        print_notes(args.limits)
    return good


if __name__ == "__main__":
    with exit_on_user_error():
        sys.exit(0 if main() else 1)
