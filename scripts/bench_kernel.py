"""Time and memory of Fourier attention against the printed formula and against softmax attention, on the CPU.

    python scripts/bench_kernel.py                                  # B 4, H 8, N 256, D 16
    python scripts/bench_kernel.py --shape lm_small --batch 4       # a shape of the paper, fewer sequences
    python scripts/bench_kernel.py --csv results/measured/kernel_cpu.csv

Parity comes first: a contestant that is wrong gets no time. Memory is what one call needs beyond its inputs: a dispatch
mode sees every tensor that an operation returns, adds its bytes when the storage is new, takes them off when it dies,
and keeps the peak (output, gradients and what the backward saves included, scratch inside an operation not).
"""

import argparse
import csv
import statistics
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fourierformer.kernels.sinc import BACKENDS, sinc_attention
from fourierformer.provenance import describe

SHAPES = {  # name: (batch, heads, tokens, width, causal); paper Table 1, authors' DeiT code
    "default": (4, 8, 256, 16, False),
    "default_causal": (4, 8, 256, 16, True),
    "lm_small": (96, 8, 256, 16, True),
    "lm_medium": (56, 8, 384, 32, True),
    "deit_tiny": (256, 3, 197, 64, False),
}
RATIO_TO = {"reference": "x reference", "softmax": "x softmax"}


class PeakMemory(TorchDispatchMode):
    """Peak bytes of storages created inside the block."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.seen = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("aten", "prims") and not function.is_view:
            for item in result if isinstance(result, list | tuple) else [result]:
                if isinstance(item, torch.Tensor):
                    self._add(item.untyped_storage())
        return result

    def ignore(self, *tensors: torch.Tensor) -> None:
        self.seen |= {t.untyped_storage()._cdata for t in tensors}

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.live -= size
        self.seen.discard(key)


def contestants(causal: bool, eps: float) -> dict[str, Callable]:
    """name -> f(q, k, v, radius), the slowest first."""

    def fourier(name: str) -> Callable:
        return lambda q, k, v, radius: sinc_attention(q, k, v, radius, eps=eps, causal=causal, backend=name)

    found = {name: fourier(name) for name in reversed(BACKENDS)}
    found["softmax"] = lambda q, k, v, radius: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal
    )
    return found


def gradients(function: Callable, leaves: list[torch.Tensor], doutput: torch.Tensor) -> list[torch.Tensor]:
    output = function(*leaves)
    used = torch.autograd.grad(output, leaves, doutput, allow_unused=True)  # softmax has no radius
    return [output.detach(), *used]


def worst_excess(function: Callable, leaves: list[torch.Tensor], doutput: torch.Tensor, direct: Callable) -> float:
    """Error over what the accuracy rule allows: twice the float32 reference's, or 1e-4. Above 1 is wrong."""
    small = [t[:1].detach() if t.dim() == 4 else t.detach() for t in leaves]  # one sequence: float64 N x M x D is big

    def run(f: Callable, dtype: torch.dtype) -> list[torch.Tensor]:
        return gradients(f, [t.to(dtype).requires_grad_() for t in small], doutput[:1].to(dtype))

    def error(found: torch.Tensor, truth: torch.Tensor) -> float:
        return ((found.double() - truth).norm() / truth.norm()).item()

    truth, theirs, ours = run(direct, torch.float64), run(direct, torch.float32), run(function, torch.float32)
    return max(error(o, t) / max(1e-4, 2 * error(d, t)) for o, d, t in zip(ours, theirs, truth, strict=True))


def measure(call: Callable, repeats: int, leaves: list[torch.Tensor]) -> tuple[float, int]:
    """(median milliseconds, peak bytes) after one warm-up call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    with PeakMemory() as memory:
        memory.ignore(*leaves)
        call()
    return statistics.median(times), memory.peak


def bench(shape: str, args: argparse.Namespace) -> list[dict]:
    batch, heads, tokens, width, causal = SHAPES[shape]
    batch = args.batch or batch
    torch.manual_seed(args.seed)
    q, k = (args.scale * torch.randn(batch, heads, tokens, width) for _ in range(2))
    radius = torch.full((heads, width), args.radius)
    leaves = [t.requires_grad_() for t in (q, k, torch.randn(batch, heads, tokens, width), radius)]
    doutput = torch.randn(batch, heads, tokens, width)
    rows = []
    found = contestants(causal, args.eps)
    for name, function in found.items():
        excess = 0.0 if name == "softmax" else worst_excess(function, leaves, doutput, found["reference"])
        if not excess <= 1:
            print(f"{name}: WRONG at {shape}: error {excess:.1f} times what the accuracy rule allows; not timed")
            continue
        calls = {
            "forward": torch.no_grad()(lambda f=function: f(*leaves)),
            "forward+backward": lambda f=function: gradients(f, leaves, doutput),
        }
        for what, call in calls.items():
            milliseconds, peak = measure(call, args.repeats, leaves)
            rows.append(
                {"shape": shape, "batch": batch, "what": what, "name": name, "ms": milliseconds, "MiB": peak / 2**20}
            )
    return rows


def add_ratios(rows: list[dict]) -> None:
    for base, label in RATIO_TO.items():
        bases = {(r["shape"], r["what"]): r for r in rows if r["name"] == base}
        for row in rows:
            against = bases.get((row["shape"], row["what"]))
            row[f"time {label}"] = row["ms"] / against["ms"] if against else None
            row[f"memory {label}"] = row["MiB"] / against["MiB"] if against else None


def cell(value: object) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="may be given several times; default: default")
    parser.add_argument("--batch", type=int, help="sequences, instead of the shape's own number")
    parser.add_argument("--radius", type=float, default=2.0)
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of queries and keys")
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write the rows there, with the settings and the machine")
    args = parser.parse_args()
    rows = [row for shape in args.shape or ["default"] for row in bench(shape, args)]
    add_ratios(rows)
    settings = {"radius": args.radius, "scale": args.scale, "eps": args.eps, "threads": torch.get_num_threads()}
    origin, _ = describe()
    settings |= {"torch": torch.__version__, "machine": f"{origin['cpu']}, {origin['cpus']} cores"}
    settings |= {"commit": (origin["commit"] or "unknown")[:7] + ("+" if origin["dirty"] else "")}
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    table = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)] if rows else []
    for line in table:
        print("  ".join(text.rjust(max(len(other[i]) for other in table)) for i, text in enumerate(line)))
    if args.csv:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], *settings])
            writer.writeheader()
            writer.writerows(row | settings for row in rows)


if __name__ == "__main__":
    main()
