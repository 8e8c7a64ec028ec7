"""The kernels that benchmarks/kernel.py compares, at which shapes, and the rows of numbers that come of it."""

import argparse
import functools
import inspect
import os
import time
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.accuracy import Contestant, as_call, gradients, parity_slice, worst_excess
from benchmarks.floors import floor_ms
from benchmarks.measure import measure
from benchmarks.shapes import SHAPES
from fourierformer.kernels.sinc import sinc_attention

RATIO_TO = {"softmax": "x softmax", "reference": "x reference", "direct, compiled": "x direct"}
# float32 tensors of B H N N D numbers that must fit in memory where the formula is written out: the peak, rounded up.
PAIR_TENSORS = {"forward": 4, "forward+backward": 12}
INPUT_SETS = {"cpu": 1, "cuda": 3}


class Wrong(Exception):
    """A contestant breaks the accuracy rule."""


def contestants(args: argparse.Namespace, causal: bool) -> dict[str, Contestant]:
    """In the order of interest: what comes last is left out first when the time is up."""

    def fourier(name: str) -> Callable:
        return lambda q, k, v, radius: sinc_attention(q, k, v, radius, eps=args.eps, causal=causal, backend=name)

    def softmax(q: Tensor, k: Tensor, v: Tensor, radius: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    every = {}
    if args.without_fused is None:
        every["fused, half"] = Contestant(fourier("fused"), args.dtype, "half")
        every["fused, float32 class"] = Contestant(fourier("fused"), torch.float32, "precise")
    every["softmax"] = Contestant(softmax, args.dtype, checked=False)
    for name, peer in args.peer.items():
        takes = inspect.signature(peer).parameters
        options = {key: value for key, value in {"causal": causal, "eps": args.eps}.items() if key in takes}
        every[name] = Contestant(functools.partial(peer, **options), args.dtype)
    if args.device == "cpu":
        every["compiled"] = Contestant(fourier("compiled"), args.dtype)
        every["portable"] = Contestant(fourier("portable"), args.dtype)
    torch.compiler.reset()  # a function is compiled only so many times, and every shape counts
    # static shapes: the slice of the parity check must not make the timed code a general one
    every["direct, compiled"] = Contestant(torch.compile(fourier("reference"), dynamic=False), args.dtype)
    every["reference"] = Contestant(fourier("reference"), args.dtype)
    wanted = ["softmax", *args.peer, *(args.contestant or every)]
    return {name: contestant for name, contestant in every.items() if name in wanted}


def random_inputs(shape: str, batch: int, args: argparse.Namespace, number: int) -> list[Tensor]:
    """q, k, v, doutput (B, H, N, D) and one radius per coordinate (H, D), float32."""
    _, heads, tokens, width, _ = SHAPES[shape]
    torch.manual_seed(args.seed + number)
    q, k, v, doutput = (torch.randn(batch, heads, tokens, width, device=args.device) for _ in range(4))
    return [args.scale * q, args.scale * k, v, doutput, torch.full((heads, width), args.radius, device=args.device)]


def why_skipped(name: str, what: str, dims: tuple, args: argparse.Namespace) -> str | None:
    if time.monotonic() > args.deadline:
        return f"the time of {args.budget_seconds:g} s is used up"
    batch, heads, tokens, width, _ = dims
    tensors = pair_tensors(name, what, args.device)
    need = tensors * 4 * batch * heads * tokens * tokens * width
    if args.device == "cpu":
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free, _ = torch.cuda.mem_get_info()
    if need > free:
        return f"{tensors} x B H N N D numbers take {need / 2**30:.3g} GiB of {free / 2**30:.3g}"
    return None


def pair_tensors(name: str, what: str, device: str) -> int:
    """How many tensors of B H N N D numbers a call holds at once."""
    if name == "direct, compiled" and device == "cuda":
        return 1  # the least: what else there was, the compiler has fused; on a CPU it fuses within passes only
    return PAIR_TENSORS[what] if name in ("direct, compiled", "reference") else 0


def calls_of(contestant: Contestant) -> dict[str, Callable]:
    """What is timed, of (leaves, doutput)."""
    return {
        "forward": torch.no_grad()(lambda leaves, doutput: contestant.function(*leaves)),
        "forward+backward": functools.partial(gradients, contestant.function),
    }


def cells(
    name: str, contestant: Contestant, softmax: Contestant, shape: str, dims: tuple, args: argparse.Namespace
) -> Iterator[dict]:
    """A row for the forward pass and one for both passes, as soon as each is there. Raises Wrong before the first."""
    tensors = [random_inputs(shape, dims[0], args, number) for number in range(INPUT_SETS[args.device])]
    sets = [as_call(t, contestant.dtype) for t in tensors]
    unsure = contestant.checked
    for what, call in calls_of(contestant).items():
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
            row |= measure(call, sets, args.repeats, args.device, calls_of(softmax)[what])
        row["floor ms"] = floor_ms(dims, what, contestant, args.limits)
        row["of floor"] = row["floor ms"] / row["ms"] if row["floor ms"] else None
        yield row


def bench(shape: str, args: argparse.Namespace) -> tuple[list[dict], bool]:
    """(rows, whether every contestant was right). One that fails does not take the others with it."""
    dims = (args.batch or SHAPES[shape][0], *SHAPES[shape][1:])
    rows, good = [], True
    entrants = contestants(args, dims[4])
    for name, contestant in entrants.items():
        try:
            # one by one: what was measured before it fails stays
            for row in cells(name, contestant, entrants["softmax"], shape, dims, args):
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
            if f"time {label}" not in row:  # on a CPU taken in turns with softmax
                row[f"time {label}"] = row["ms"] / against["ms"] if against else None
            row[f"memory {label}"] = row["MiB"] / against["MiB"] if against else None
