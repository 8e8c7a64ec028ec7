"""Time and memory of Fourier attention against the printed formula and against softmax attention, on a GPU or a CPU.

    python scripts/bench_kernel.py                             # on a GPU four shapes, on a CPU B 4, H 8, N 256, D 16
    python scripts/bench_kernel.py --shape lm_small --batch 4  # a shape of the paper, fewer sequences
    python scripts/bench_kernel.py --peer module:function      # f(q, k, v, radius (H, D) in float32)
    python scripts/bench_kernel.py --device cpu --csv results/measured/kernel_cpu.csv

Parity comes first, on the first sequence, its first heads and last 512 tokens: a contestant that is wrong gets no time,
and the exit status is 1. Memory is what one call needs beyond its inputs. On a GPU it is the allocator's peak; on a CPU
a dispatch mode sees every tensor that an operation returns, adds its bytes when the storage is new, takes them off when
it dies, and keeps the peak (output, gradients and what the backward saves included, scratch inside an operation not).
"""

import argparse
import csv
import functools
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from bench_measure import LANES, Contestant, as_call, gradients, limits, measure, parity_slice, worst_excess
from torch import Tensor

from fourierformer.kernels.sinc import sinc_attention, why_not_fused
from fourierformer.provenance import describe

SHAPES = {  # name: (batch, heads, tokens, width, causal); paper Table 1, authors' DeiT code
    "default": (4, 8, 256, 16, False),
    "default_causal": (4, 8, 256, 16, True),
    "lm_small": (96, 8, 256, 16, True),
    "lm_medium": (56, 8, 384, 32, True),
    "deit_tiny": (256, 3, 197, 64, False),
    "long": (1, 8, 16384, 64, True),
}
DEFAULT = {"cpu": ["default"], "cuda": ["lm_small", "lm_medium", "deit_tiny", "long"]}
DTYPES = ("float32", "bfloat16", "float16")
RATIO_TO = {"softmax": "x softmax", "reference": "x reference", "direct, compiled": "x direct"}
# Executed per pair of query and key by one lane, from the machine code: scripts/inspect_kernel.py counts them.
# (width, direction, precision); backward is both launches together. What is not here has no floor.
INSTRUCTIONS_PER_PAIR = {
    (16, "forward", "half"): 38,
    (32, "forward", "half"): 62,
    (64, "forward", "half"): 110,
    (16, "backward", "half"): 346,
    (32, "backward", "half"): 816,
    (64, "backward", "half"): 1793,
    (16, "forward", "precise"): 71,
    (32, "forward", "precise"): 131,
    (64, "forward", "precise"): 235,
    (16, "backward", "precise"): 604,
    (32, "backward", "precise"): 1240,
    (64, "backward", "precise"): 5351,
}
TENSORS_MOVED = {"forward": 4, "forward+backward": 4 + 8}  # q, k, v, out; then q, k, v, out, dout, dq, dk, dv
# float32 tensors of B H N N D numbers that must fit in memory: the eager peak, rounded up; compiled, at least one.
PAIR_TENSORS = {
    "reference": {"forward": 4, "forward+backward": 12},
    "direct, compiled": {"forward": 1, "forward+backward": 1},
}
INPUT_SETS = {"cpu": 1, "cuda": 3}


class Wrong(Exception):
    """A contestant breaks the accuracy rule."""


def contestants(args: argparse.Namespace, causal: bool) -> dict[str, Contestant]:
    """In the order of interest: what comes last is left out first when the time is up."""

    def fourier(name: str) -> Callable:
        return lambda q, k, v, radius: sinc_attention(q, k, v, radius, eps=args.eps, causal=causal, backend=name)

    def softmax(q: Tensor, k: Tensor, v: Tensor, radius: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    found = {}
    if args.without_fused is None:
        found["fused, half"] = Contestant(fourier("fused"), args.dtype, "half")
        found["fused, float32 class"] = Contestant(fourier("fused"), torch.float32, "precise")
    found["softmax"] = Contestant(softmax, args.dtype, checked=False)
    for name, peer in args.peer.items():
        takes = inspect.signature(peer).parameters
        options = {key: value for key, value in {"causal": causal, "eps": args.eps}.items() if key in takes}
        found[name] = Contestant(functools.partial(peer, **options), args.dtype)
    if args.device == "cpu":
        found["portable"] = Contestant(fourier("portable"), args.dtype)
    else:  # static shapes: the slice of the parity check must not make the timed code a general one
        torch.compiler.reset()  # a function is compiled only so many times, and every shape counts
        for name, backend in (("direct, compiled", "reference"), ("portable, compiled", "portable")):
            found[name] = Contestant(torch.compile(fourier(backend), dynamic=False), args.dtype)
    found["reference"] = Contestant(fourier("reference"), args.dtype)
    return found


def random_inputs(shape: str, batch: int, args: argparse.Namespace, number: int) -> list[Tensor]:
    """q, k, v, doutput (B, H, N, D) and one radius per coordinate (H, D), float32."""
    _, heads, tokens, width, _ = SHAPES[shape]
    torch.manual_seed(args.seed + number)
    q, k, v, doutput = (torch.randn(batch, heads, tokens, width, device=args.device) for _ in range(4))
    return [args.scale * q, args.scale * k, v, doutput, torch.full((heads, width), args.radius, device=args.device)]


def floor_ms(dims: tuple, what: str, contestant: Contestant, limit: dict[str, float | None]) -> float | None:
    """No run can be faster: every instruction issued at the full rate, every tensor moved once."""
    batch, heads, tokens, width, causal = dims
    pairs = tokens * (tokens + 1) // 2 if causal else tokens * tokens
    each = [INSTRUCTIONS_PER_PAIR.get((width, part, contestant.counts)) for part in what.split("+")]
    if None in each or limit["issue"] is None:
        return None
    seconds = batch * heads * pairs * sum(each) / limit["issue"]
    if limit["bandwidth"]:
        moved = batch * heads * tokens * width * TENSORS_MOVED[what] * contestant.dtype.itemsize
        seconds = max(seconds, moved / limit["bandwidth"])
    return seconds * 1e3


def why_skipped(name: str, what: str, dims: tuple, args: argparse.Namespace) -> str | None:
    if time.monotonic() > args.deadline:
        return f"the time of {args.budget_seconds:g} s is used up"
    batch, heads, tokens, width, _ = dims
    tensors = PAIR_TENSORS.get(name, {}).get(what, 0)
    need = tensors * 4 * batch * heads * tokens * tokens * width
    if args.device == "cpu":
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free, _ = torch.cuda.mem_get_info()
    if need > free:
        return f"{tensors} x B H N N D numbers take {need / 2**30:.3g} GiB of {free / 2**30:.3g}"
    return None


def cells(name: str, contestant: Contestant, shape: str, dims: tuple, args: argparse.Namespace) -> Iterator[dict]:
    """A row for the forward pass and one for both passes, as soon as each is there. Raises Wrong before the first."""
    tensors = [random_inputs(shape, dims[0], args, number) for number in range(INPUT_SETS[args.device])]
    sets = [as_call(t, contestant.dtype) for t in tensors]
    calls = {
        "forward": torch.no_grad()(lambda leaves, doutput: contestant.function(*leaves)),
        "forward+backward": functools.partial(gradients, contestant.function),
    }
    unsure = contestant.checked
    for what, call in calls.items():
        if reason := why_skipped(name, what, dims, args):
            print(f"{name}: {what} left out at {shape}: {reason}")
            continue
        if unsure:
            direct = functools.partial(sinc_attention, eps=args.eps, causal=dims[4], backend="reference")
            excess = worst_excess(contestant, parity_slice(tensors[0]), direct)
            if not excess <= 1:
                raise Wrong(f"error {excess:.1f} times what the accuracy rule allows; not timed")
            unsure = False
        row = {"shape": shape, "batch": dims[0], "what": what, "name": name}
        row["dtype"] = str(contestant.dtype).removeprefix("torch.")
        with contestant.precision():
            row |= measure(call, sets, args.repeats, args.device)
        row["floor ms"] = floor_ms(dims, what, contestant, args.limits)
        row["of floor"] = row["floor ms"] / row["ms"] if row["floor ms"] else None
        yield row


def bench(shape: str, args: argparse.Namespace) -> tuple[list[dict], bool]:
    """(rows, whether every contestant was right). One that fails does not take the others with it."""
    dims = (args.batch or SHAPES[shape][0], *SHAPES[shape][1:])
    rows, good = [], True
    for name, contestant in contestants(args, dims[4]).items():
        try:
            # one by one: what was measured before it fails stays
            for row in cells(name, contestant, shape, dims, args):
                rows.append(row)
        except Wrong as error:
            print(f"{name}: WRONG at {shape}: {error}")
            good = False
        except torch.OutOfMemoryError:
            print(f"{name}: out of memory at {shape}")
        except Exception as error:
            traceback.print_exc()
            print(f"{name}: FAILS at {shape}: {type(error).__name__}")
            good = False
        if args.device == "cuda":
            torch.cuda.empty_cache()
    add_ratios(rows)
    return rows, good


def add_ratios(rows: list[dict]) -> None:
    for base, label in RATIO_TO.items():
        bases = {r["what"]: r for r in rows if r["name"] == base}
        for row in rows:
            against = bases.get(row["what"])
            row[f"time {label}"] = row["ms"] / against["ms"] if against else None
            row[f"memory {label}"] = row["MiB"] / against["MiB"] if against else None


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
        "Median times, launches included. dtype is that of q, k, v and output: for the float32 class always float32.\n"
        "'portable, compiled' runs eagerly: it asks the compiler to leave it alone.\n"
        "of floor = floor / time, floor = max(bytes / bandwidth, instructions / issue rate), where\n"
        "  bytes = size of the dtype x B H N D x 4 (q, k, v, out), with backward 8 more (the same, dout, dq, dk, dv)\n"
        "  instructions = B H x pairs x instructions per pair; pairs = N^2, causal N (N + 1) / 2\n"
        f"  issue rate = multiprocessors x {LANES} lanes x highest clock = {cell(limit['issue'])} / s\n"
        f"  bandwidth = 2 x memory clock x bus width = {cell(limit['bandwidth'])} bytes / s\n"
        f"  instructions per pair: {INSTRUCTIONS_PER_PAIR}"
    )


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    origin, _ = describe()
    return {
        "radius": args.radius,
        "scale": args.scale,
        "eps": args.eps,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": origin["versions"]["triton"],
        "machine": f"{origin['cpu']}, {origin['cpus']} cores",
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "commit": (origin["commit"] or "unknown")[:7] + ("+" if origin["dirty"] else ""),
    }


def save(path: Path, rows: list[dict], settings: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *settings])
        writer.writeheader()
        writer.writerows(row | settings for row in rows)


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
    parser.add_argument("--repeats", type=int, help="default: 5 on a CPU, 20 on a GPU")
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
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU")
    return args


def complete(args: argparse.Namespace) -> None:
    """What depends on the device, and the clock that starts now."""
    gpu = args.device == "cuda"
    args.shape = args.shape or DEFAULT[args.device]
    args.dtype = getattr(torch, args.dtype or ("bfloat16" if gpu else "float32"))
    args.repeats = args.repeats or (20 if gpu else 5)
    args.peer = dict(args.peer)
    args.without_fused = why_not_fused(torch.empty(0, device=args.device, dtype=args.dtype))
    if not gpu and args.without_fused is None:
        args.without_fused = "Triton's interpreter says nothing about its time"
    args.limits = limits(args.device)
    args.deadline = time.monotonic() + args.budget_seconds


def main() -> bool:
    args = arguments()
    complete(args)
    settings = settings_of(args)
    print(", ".join(f"{name} {cell(value)}" for name, value in settings.items()))
    if args.without_fused:
        print(f"fused: left out: {args.without_fused}")
    rows, good = [], True
    for shape in args.shape:
        found, right = bench(shape, args)
        rows, good = rows + found, good and right
        if found:
            print_table(shape, found)
        if rows and args.csv:
            save(args.csv, rows, settings)
    if args.device == "cuda":
        print_notes(args.limits)
    return good


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
