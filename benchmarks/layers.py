"""Time and memory of an attention layer against the number of tokens: rows of benchmarks/attention.py."""

import argparse
import contextlib
import itertools
import math
import os
import statistics
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmarks.clocks import peak_mebibytes, take_turns, times_cpu, times_cuda
from fourierformer.attention import Geometry, build, mechanism, refusal
from fourierformer.errors import SetupError, short
from fourierformer.training.precision import autocast

FIT_FROM = 2048  # tokens; below, costs that do not grow with N flatten the slope
LARGEST_SLOPE = 1.15  # of a linear cost
LABELS = {"milliseconds": "milliseconds", "mebibytes": "peak MiB"}
PEER = "softmax"
WHAT = ("forward", "forward+backward")
MEASURED = "measured"
FASTER = ("N²", "√N", "log N")  # growth above N, in the stated cost of a mechanism
SHARE = 0.5  # of the machine's memory that a point may need: on a CPU other programs need some
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
BATCH = {"cpu": 1, "cuda": 8}


@dataclass
class Row:
    """One point, or one refusal (then without tokens). Ratios are to softmax, called in turns."""

    attention: str
    mask: str
    tokens: int | None
    what: str
    status: str = MEASURED
    milliseconds: float | None = None
    softmax_milliseconds: float | None = None
    time_ratio: float | None = None
    mebibytes: float | None = None
    memory_ratio: float | None = None
    repeats: int | None = None

    @property
    def measured(self) -> bool:
        return self.status == MEASURED

    @property
    def key(self) -> tuple:
        """Equal for the same measurement at another number of tokens."""
        return self.attention, self.mask, self.what


class Layer:
    """A layer with the initial weights of a model, N(0, 0.02), and an input of unit variance."""

    def __init__(self, name: str, causal: bool, tokens: int, dim: int, heads: int, device: str):
        columns = 2 ** (int(math.log2(tokens)) // 2)  # as square as powers of 2 can be
        grid = (tokens // columns, columns) if mechanism(name).needs_grid else None
        geometry = Geometry(dim=dim, heads=heads, length=tokens, causal=causal, grid=grid)
        torch.manual_seed(0)
        self.module = build(name, geometry).to(device)
        for part in self.module.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
        self.device = torch.device(device)
        self.x, self.gradient = torch.randn(2, BATCH[device], tokens, dim, device=device).unbind()
        self.leaves = [self.x.requires_grad_(), *(p for p in self.module.parameters() if p.requires_grad)]

    def call(self, what: str) -> None:
        with torch.set_grad_enabled(what != "forward"), autocast(self.device, PRECISION[self.device.type]):
            output = self.module(self.x)
        if what != "forward":
            torch.autograd.grad(output, self.leaves, self.gradient.to(output.dtype), allow_unused=True)

    def milliseconds(self, what: str) -> float:
        if self.device.type == "cuda":
            return times_cuda(self.call, [(what,)], 1)[0]
        return times_cpu(self.call, [(what,)], 1, clock=time.process_time)[0]

    def mebibytes(self, what: str) -> float:
        """Peak of one call beyond input, weights and the output's gradient."""
        kept = [*self.leaves, *self.module.buffers(), self.gradient]
        return peak_mebibytes(self.device.type, lambda: self.call(what), kept)


@dataclass
class Limits:
    """Limits of the points that are tried. A measurement too slow or too large at some N is not tried at a larger N."""

    seconds: float  # a call may take
    minutes: float  # all points may take
    memory: float  # MiB that a call may need
    seen: dict[tuple, list[Row]] = field(default_factory=dict)
    ended: dict[tuple, str] = field(default_factory=dict)

    def __post_init__(self):
        self.deadline = time.monotonic() + 60 * self.minutes

    def reason(self, row: Row) -> str | None:
        """The reason why this point is left out; None if it is not."""
        if row.key in self.ended:
            return self.ended[row.key]
        if time.monotonic() > self.deadline:
            return f"the {self.minutes:g} minutes for all points are used up"
        before = self.seen.get(row.key, [])
        call = expected([(r.tokens, r.milliseconds) for r in before], row.tokens) / 1e3
        if call > self.seconds:
            return f"a call should take {call:.3g} s, more than {self.seconds:g} s"
        size = expected([(r.tokens, r.mebibytes) for r in before], row.tokens)
        if size > self.memory:
            return f"a call should need {size:,.0f} MiB, more than {self.memory:,.0f} MiB"
        return None

    def note(self, row: Row) -> None:
        if row.measured:
            self.seen.setdefault(row.key, []).append(row)


def memory_limit(device: str) -> float:
    """MiB that a call may need."""
    on_cpu = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return SHARE * (torch.cuda.mem_get_info()[1] if device == "cuda" else on_cpu) / 2**20


def expected(points: Sequence[tuple[int, float]], tokens: int) -> float:
    """Extrapolated value: a power of N between 1 and 3 through the last two points, N^2 from one point, 0 from none."""
    if not points:
        return 0.0
    last, value = points[-1]
    growth = exponent(points[-2:], start=0)
    growth = 2.0 if growth is None else min(max(growth, 1.0), 3.0)
    return value * (tokens / last) ** growth


def exponent(points: Sequence[tuple[int, float]], start: int = FIT_FROM) -> float | None:
    """Slope of log value against log N (least squares) from `start` tokens on; None for fewer than two points."""
    logs = [(math.log(tokens), math.log(value)) for tokens, value in points if tokens >= start and value > 0]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope if len(logs) > 1 else None


def claims_linear(cost: str) -> bool:
    """Whether the stated cost is linear in N for long inputs; text after a semicolon holds for shorter ones only."""
    return not any(sign in cost.split(";")[0] for sign in FASTER)


def bench(args: argparse.Namespace, limits: Limits) -> Iterator[Row]:
    """Yield all rows, short inputs first: if time runs out, the longest are missing."""
    refused = set()
    for tokens, mask in itertools.product(args.lengths, args.masks):
        peer, of_peer = None, {}
        for name in args.names:
            if (name, mask) in refused:
                continue
            rows = [Row(name, mask, tokens, what) for what in WHAT]
            layer = None
            if not all(limits.reason(row) for row in rows):
                reason = refusal(mechanism(name), mask == "causal", grid=True)
                try:
                    layer = None if reason else Layer(name, mask == "causal", tokens, args.dim, args.heads, args.device)
                except SetupError as error:  # of its sizes
                    reason = str(error)
                if reason:
                    refused.add((name, mask))
                    yield Row(name, mask, None, "", f"refused: {reason}")
                    continue
            for row in rows:
                attempt(row, layer, peer, of_peer.get(row.what), limits, args)
                if name == PEER and row.measured:
                    of_peer[row.what] = row
                yield row
            peer = layer if name == PEER else peer


def attempt(row: Row, layer: Layer | None, peer: Layer | None, of_peer: Row | None, limits: Limits, args) -> None:
    """Measure a point, or write the reason into the row. An error leaves the other points measured."""
    if reason := limits.reason(row):
        row.status = f"skipped: {reason}"
        return
    try:
        measure(row, layer, peer, of_peer, args.seconds, args.repeats)
    except Exception as error:  # out of memory, on a CPU, is a RuntimeError without a class of its own
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            reason = limits.ended[row.key] = f"out of memory at N = {row.tokens}"
            row.status = f"skipped: {reason}"
        else:
            traceback.print_exc()
            row.status = f"failed: {short(error)}"
        if args.device == "cuda":
            with contextlib.suppress(RuntimeError):  # after an illegal access every call raises, this one too
                torch.cuda.empty_cache()
    limits.note(row)


def measure(row: Row, layer: Layer, peer: Layer | None, of_peer: Row | None, seconds: float, repeats: int) -> None:
    """Fill in a row. Without `of_peer` (for softmax itself, or where it was left out) there are no ratios."""
    clocks = [lambda: layer.milliseconds(row.what), *([lambda: peer.milliseconds(row.what)] if of_peer else [])]
    began = time.monotonic()
    clocks[0]()  # compiles
    mine, *theirs = take_turns(clocks, repeats, seconds - (time.monotonic() - began))
    row.milliseconds, row.repeats = statistics.median(mine), len(mine)
    row.mebibytes = layer.mebibytes(row.what)
    if of_peer:
        row.softmax_milliseconds = statistics.median(theirs[0])
        row.time_ratio = statistics.median(a / b for a, b in zip(mine, theirs[0], strict=True))
        row.memory_ratio = row.mebibytes / of_peer.mebibytes


def points(rows: list[Row], name: str, mask: str, what: str, quantity: str) -> list[tuple[int, float]]:
    same = (r for r in rows if r.measured and (r.attention, r.mask, r.what) == (name, mask, what))
    return [(r.tokens, getattr(r, quantity)) for r in same]


def exponents(rows: list[Row], args: argparse.Namespace) -> Iterator[str]:
    """Lines with the fitted exponents, and a line for each that contradicts the stated cost."""
    columns = [(mask, what, quantity) for mask in args.masks for what in WHAT for quantity in LABELS]
    flags = []
    yield f"\nExponents of N over N >= {FIT_FROM:,}: time / memory"
    yield f"{'':26}" + "".join(f"{mask:>32}" for mask in args.masks)
    directions = "".join(f"{what:>16}" for what in ("forward", "and backward"))
    yield f"{'':26}" + directions * len(args.masks) + "  stated cost"
    for name in args.names:
        slopes = {column: exponent(points(rows, name, *column)) for column in columns}
        cost = mechanism(name).cost
        texts = ["-" if slope is None else f"{slope:.2f}" for slope in slopes.values()]
        pairs = [f"{time} / {memory}" for time, memory in zip(texts[::2], texts[1::2], strict=True)]
        yield f"{name:26}" + "".join(f"{pair:>16}" for pair in pairs) + f"  {cost}"
        if claims_linear(cost):
            flags += [(name, column, s) for column, s in slopes.items() if s is not None and s > LARGEST_SLOPE]
    for name, (mask, what, quantity), slope in flags:
        yield f"ABOVE {LARGEST_SLOPE}: {name}, {mask}, {what}: {LABELS[quantity]} as N^{slope:.2f}, stated is linear"
