"""The kernels that benchmarks/kernel.py compares: calls, accuracy checks, and rows of numbers."""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.clocks import measure
from benchmarks.floors import floor_ms
from fourierformer.attention.mechanisms.fourier_disc import EQUAL_CURVATURE
from fourierformer.kernels.sinc import sinc_attention

# which softmax chooses from, besides slower ones, for q, k, v of 16 bits
SDPA_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
# float32 tensors of B H N N D numbers that the written-out formula holds at once: the peak, rounded up.
PAIR_TENSORS = {"forward": 4, "forward+backward": 12}
INPUT_SETS = {"cpu": 1, "cuda": 3}
PARITY_TOKENS, PARITY_NUMBERS = 512, 2**25  # of the slice; N x N x D numbers in float64, several times
# Relative error of the half mode's features, times sqrt(width): each coordinate is a factor of its own rounding error.
FEATURES_IN_FLOAT16 = 3e-4


class Wrong(Exception):
    """A contestant breaks the accuracy rule."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    function: Callable  # f(q, k, v, radius)
    dtype: torch.dtype  # of q, k, v and the output
    counts: str | None = None  # "half" or "precise": the key of its INSTRUCTIONS_PER_PAIR
    checked: bool = True

    @property
    def half(self) -> bool:
        """Whether the accuracy rule of half precision holds."""
        return self.counts == "half" or self.dtype != torch.float32

    @contextlib.contextmanager
    def precision(self):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.counts == "half" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def contestants(args: argparse.Namespace, causal: bool) -> dict[str, Contestant]:
    """All contestants by name, in the order of interest: the last ones are left out first when the time is up."""

    def fourier(name: str) -> Callable:
        return lambda q, k, v, radius: sinc_attention(q, k, v, radius, eps=args.eps, causal=causal, backend=name)

    def discs(q: Tensor, k: Tensor, v: Tensor, radius: Tensor) -> Tensor:
        return sinc_attention(q, k, v, EQUAL_CURVATURE * radius, eps=args.eps, causal=causal, disc=True)

    def softmax(q: Tensor, k: Tensor, v: Tensor, radius: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    @functools.cache  # at its first call: the compiler takes seconds to import, which other contestants do not need
    def compiled() -> Callable:
        torch.compiler.reset()  # the number of compilations per function is limited, and every shape counts
        # static shapes: the slice of the parity check must not generalise the timed code
        return torch.compile(fourier("reference"), dynamic=False)

    every = {}
    if args.without_fused is None:
        every["fused, half"] = Contestant(fourier("fused"), args.dtype, "half")
        every["fused, float32 class"] = Contestant(fourier("fused"), torch.float32, "precise")
    every["softmax"] = Contestant(softmax, args.dtype, checked=False)
    if args.device == "cuda" and args.dtype != torch.float32:
        for name, backend in SDPA_BACKENDS.items():
            every[f"softmax, {name}"] = Contestant(sdpa_kernel(backend)(softmax), args.dtype, checked=False)
    for name, peer in args.peer.items():
        takes = inspect.signature(peer).parameters
        options = {key: value for key, value in {"causal": causal, "eps": args.eps}.items() if key in takes}
        every[name] = Contestant(functools.partial(peer, **options), args.dtype)
    if args.device == "cpu":
        every["compiled"] = Contestant(fourier("compiled"), args.dtype)
        # another function than that of the parity check: tests/kernels/test_sinc_disc.py checks it
        every["compiled, discs"] = Contestant(discs, args.dtype, checked=False)
        every["portable"] = Contestant(fourier("portable"), args.dtype)
    every["direct, compiled"] = Contestant(lambda *qkvr: compiled()(*qkvr), args.dtype)
    every["reference"] = Contestant(fourier("reference"), args.dtype)
    wanted = ["softmax", *args.peer, *(args.contestant or every)]
    return {name: contestant for name, contestant in every.items() if name in wanted}


def moderate_radius(width: int, scale: float = 1.0) -> float:
    """R at which the mean log-weight of q and k ~ N(0, scale^2) is about -4, for power 4: at every width the weights
    are then within float32, and an error changes the output. log w = -4 D z^2 / 6 for small z = R (q - k)."""
    return math.sqrt(3 / width) / scale


def random_inputs(dims: tuple, args: argparse.Namespace, number: int) -> list[Tensor]:
    """q, k, v, doutput (B, H, N, D) and one radius per coordinate (H, D), float32."""
    batch, heads, tokens, width, _ = dims
    torch.manual_seed(args.seed + number)
    q, k, v, doutput = (torch.randn(batch, heads, tokens, width, device=args.device) for _ in range(4))
    radius = moderate_radius(width, args.scale) if args.radius is None else args.radius
    return [args.scale * q, args.scale * k, v, doutput, torch.full((heads, width), radius, device=args.device)]


def why_skipped(name: str, what: str, dims: tuple, args: argparse.Namespace) -> str | None:
    if time.monotonic() > args.deadline:
        return f"the time of {args.budget_seconds:g} s is used up"
    batch, heads, tokens, width, _ = dims
    tensors = PAIR_TENSORS[what] if name in ("direct, compiled", "reference") else 0
    if name == "direct, compiled" and args.device == "cuda":
        tensors = 1  # at least: the compiler fuses the others; on a CPU it fuses within passes only
    need = tensors * 4 * batch * heads * tokens * tokens * width
    if args.device == "cpu":
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free, _ = torch.cuda.mem_get_info()
    if need > free:
        return f"{tensors} x B H N N D numbers take {need / 2**30:.3g} GiB of {free / 2**30:.3g}"
    return None


def calls_of(contestant: Contestant) -> dict[str, Callable]:
    """The timed functions, of (leaves, doutput)."""
    return {
        "forward": torch.no_grad()(lambda leaves, doutput: contestant.function(*leaves)),
        "forward+backward": functools.partial(gradients, contestant.function),
    }


def attempts(name: str, shape: str, dims: tuple, threads: int, args: argparse.Namespace) -> Iterator[dict | str]:
    """Yield a row for the forward pass and one for both passes, as soon as each is measured; then the message of an
    error, if there was one."""
    torch.set_num_threads(threads)
    try:
        yield from cells(name, shape, dims, args)
    except Wrong as error:
        yield f"{name}: WRONG at {shape}: {error}"
    except torch.OutOfMemoryError:
        yield f"{name}: out of memory at {shape}"
    except Exception as error:
        traceback.print_exc()
        yield f"{name}: FAILS at {shape}: {type(error).__name__}"


def cells(name: str, shape: str, dims: tuple, args: argparse.Namespace) -> Iterator[dict]:
    entrants = contestants(args, causal=dims[4])
    contestant, softmax = entrants[name], entrants["softmax"]
    tensors = [random_inputs(dims, args, number) for number in range(INPUT_SETS[args.device])]
    sets = [as_call(t, contestant.dtype) for t in tensors]
    unsure = contestant.checked
    for what, call in calls_of(contestant).items():
        if reason := why_skipped(name, what, dims, args):
            print(f"{name}: {what} left out at {shape}: {reason}", flush=True)
            continue
        if unsure:
            direct = functools.partial(sinc_attention, eps=args.eps, causal=dims[4], backend="reference")
            excess = worst_excess(contestant, parity_slice(tensors[0]), direct)
            if not excess <= 1:
                raise Wrong(f"error {excess:.1f} times the limit of the accuracy rule; not timed")
            unsure = False
        row = {"shape": shape, "batch": dims[0], "what": what, "name": name}
        row["dtype"] = str(contestant.dtype).removeprefix("torch.")
        with contestant.precision():
            row |= measure(call, sets, args.repeats, args.device, calls_of(softmax)[what])
            if args.device == "cpu" and name == "direct, compiled":
                row["MiB"] = None  # while a TorchDispatchMode counts, torch does not run the compiled function
        row["floor ms"] = floor_ms(dims, what, contestant, args.limits)
        row["of floor"] = row["floor ms"] / row["ms"] if row["floor ms"] else None
        yield row


def rounded(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    *numbers, radius = tensors
    return [*(t.to(dtype).float() for t in numbers), radius]


def as_call(tensors: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """([q, k, v, radius], doutput). The radius is a parameter: it stays float32 beside narrower inputs."""
    *numbers, doutput = (t.to(dtype) for t in tensors[:4])
    radius = tensors[4].to(torch.promote_types(dtype, torch.float32))
    return [t.detach().requires_grad_() for t in (*numbers, radius)], doutput


def gradients(function: Callable, leaves: list[Tensor], doutput: Tensor) -> list[Tensor | None]:
    output = function(*leaves)
    used = torch.autograd.grad(output, leaves, doutput, allow_unused=True)  # softmax has no radius
    return [output.detach(), *used]


def errors(results: list[Tensor | None], truth: list[Tensor]) -> list[float]:
    """Relative, in the Euclidean norm; infinite where a result is missing or not finite."""
    return [
        ((r.double() - t).norm() / t.norm()).item() if r is not None and r.isfinite().all() else float("inf")
        for r, t in zip(results, truth, strict=True)
    ]


def parity_slice(tensors: list[Tensor]) -> list[Tensor]:
    """The first sequence, its last tokens, and as many heads as fit the float64 reference."""
    *numbers, radius = tensors
    tokens, width = min(numbers[0].shape[2], PARITY_TOKENS), numbers[0].shape[3]
    heads = max(1, PARITY_NUMBERS // (tokens * tokens * width))
    return [*(t[:1, :heads, -tokens:].contiguous() for t in numbers), radius[:heads]]


def worst_excess(contestant: Contestant, tensors: list[Tensor], direct: Callable) -> float:
    """The largest error over the error that the accuracy rule allows; above 1 is wrong."""
    return max(e / a for e, a in zip(*errors_allowed(contestant, tensors, direct), strict=True))


def errors_allowed(
    contestant: Contestant, tensors: list[Tensor], direct: Callable, errors: Callable = errors
) -> tuple[list[float], list[float]]:
    """Errors of the output and the gradients, and the errors that the accuracy rule allows.

    Allowed: twice the error of the reference in float32, or 1e-4; in half precision also the error of the reference
    after rounding q, k, v and doutput to bfloat16, and that of features in float16; and the rounding of results.
    """

    def exact(numbers: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return gradients(direct, *as_call(numbers, dtype))

    given = rounded(tensors, contestant.dtype)
    truth = exact(given)
    allowed = [max(1e-4, 2 * e) for e in errors(exact(given, torch.float32), truth)]
    if contestant.half:
        cost = errors(exact(rounded(tensors, torch.bfloat16)), exact(tensors))
        features = FEATURES_IN_FLOAT16 * math.sqrt(tensors[0].shape[3])
        allowed = [max(a, c, features) for a, c in zip(allowed, cost, strict=True)]
    if contestant.dtype != torch.float32:  # results are rounded as well
        allowed = [a + torch.finfo(contestant.dtype).eps / 2 for a in allowed]
    with contestant.precision():
        ours = gradients(contestant.function, *as_call(given, contestant.dtype))
    return errors(ours, truth), allowed
