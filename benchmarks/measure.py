"""What every benchmark asks: how long a call takes, how much memory it needs, whether its result is right."""

import contextlib
import dataclasses
import statistics
import subprocess
import time
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fourierformer.attention import Attention

# Of one multiprocessor, by compute capability (CUDA programming guide, and the data sheets' rates over clocks):
# float32 lanes, each starts one instruction per clock; and multiply-adds of float16 per clock in the matrix unit.
LANES = {(8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128}
MATRIX_RATE = {(8, 0): 1024, (8, 6): 512, (8, 9): 512, (9, 0): 2048, (10, 0): 4096}
PARITY_TOKENS, PARITY_NUMBERS = 512, 2**25  # of the slice; N x N x D numbers in float64, several times
PATIENCE = 8  # seconds for the repeats of one cell; slow calls are repeated less often, the column says how often


@dataclasses.dataclass(frozen=True)
class Contestant:
    function: Callable  # f(q, k, v, radius)
    dtype: torch.dtype  # of q, k, v and the output
    counts: str | None = None  # "half" or "precise": which INSTRUCTIONS_PER_PAIR it has
    checked: bool = True

    @property
    def half(self) -> bool:
        """Which accuracy rule it has to meet."""
        return self.counts == "half" or self.dtype != torch.float32

    @contextlib.contextmanager
    def precision(self):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.counts == "half" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


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


def errors(found: list[Tensor | None], truth: list[Tensor]) -> list[float]:
    """Relative, in the Euclidean norm; infinite where a result is missing or not finite."""
    return [
        ((f.double() - t).norm() / t.norm()).item() if f is not None and f.isfinite().all() else float("inf")
        for f, t in zip(found, truth, strict=True)
    ]


def parity_slice(tensors: list[Tensor]) -> list[Tensor]:
    """The first sequence, its last tokens, and as many heads as the float64 reference can hold."""
    *numbers, radius = tensors
    tokens, width = min(numbers[0].shape[2], PARITY_TOKENS), numbers[0].shape[3]
    heads = max(1, PARITY_NUMBERS // (tokens * tokens * width))
    return [*(t[:1, :heads, -tokens:].contiguous() for t in numbers), radius[:heads]]


def worst_excess(contestant: Contestant, tensors: list[Tensor], direct: Callable) -> float:
    """Error over what the accuracy rule allows; above 1 is wrong.

    Allowed: twice the error of the reference in float32, or 1e-4; in half precision also what rounding q, k, v and
    doutput to bfloat16 costs the reference.
    """

    def exact(numbers: list[Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor]:
        return gradients(direct, *as_call(numbers, dtype))

    given = rounded(tensors, contestant.dtype)
    truth = exact(given)
    allowed = [max(1e-4, 2 * e) for e in errors(exact(given, torch.float32), truth)]
    if contestant.half:
        cost = errors(exact(rounded(tensors, torch.bfloat16)), exact(tensors))
        allowed = [max(a, c) for a, c in zip(allowed, cost, strict=True)]
    with contestant.precision():
        ours = gradients(contestant.function, *as_call(given, contestant.dtype))
    return max(e / a for e, a in zip(errors(ours, truth), allowed, strict=True))


class PeakMemory(TorchDispatchMode):
    """Peak bytes of storages created inside the block."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.seen = 0, 0, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("aten", "prims", "fourierformer") and not function.is_view:
            for item in result if isinstance(result, list | tuple) else [result]:
                if isinstance(item, Tensor):
                    self._add(item.untyped_storage())
        return result

    def ignore(self, *tensors: Tensor) -> None:
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


def times_cpu(call: Callable, sets: list[tuple], repeats: int) -> list[float]:
    times = []
    for number in range(repeats):
        start = time.perf_counter()
        call(*sets[number % len(sets)])
        times.append((time.perf_counter() - start) * 1e3)
    return times


def times_cuda(call: Callable, sets: list[tuple], repeats: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for number, (start, end) in enumerate(events):
        start.record()
        call(*sets[number % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def peak_cpu(call: Callable, leaves: list[Tensor], doutput: Tensor) -> int:
    with PeakMemory() as memory:
        memory.ignore(*leaves, doutput)
        call(leaves, doutput)
    return memory.peak


def peak_cuda(call: Callable, leaves: list[Tensor], doutput: Tensor) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(leaves, doutput)
    return torch.cuda.max_memory_allocated() - before


def measure(call: Callable, sets: list[tuple], repeats: int, device: str, softmax: Callable) -> dict[str, object]:
    """Median time after a warm-up (compiling, tuning, then every input set once), and the peak of one more call.

    On a CPU in turns with softmax, because other programs on the machine slow both alike; the ratio is the median of
    those of neighbours.
    """
    timer, peak = (times_cpu, peak_cpu) if device == "cpu" else (times_cuda, peak_cuda)
    call(*sets[0])
    slowest = max(timer(call, sets, len(sets)))
    repeats = min(repeats, max(2, int(PATIENCE * 1e3 / slowest)))
    found = {}
    if device == "cpu":
        softmax(*sets[0])
        pairs = [(timer(call, sets, 1)[0], timer(softmax, sets, 1)[0]) for _ in range(repeats)]
        times = [time for time, _ in pairs]
        found["time x softmax"] = statistics.median(ours / theirs for ours, theirs in pairs)
    else:
        times = timer(call, sets, repeats)
    found |= {"ms": statistics.median(times), "MiB": peak(call, *sets[0]) / 2**20, "repeats": repeats}
    return found | {"sm MHz": query_gpu("clocks.sm") if device == "cuda" else None}


def seconds_per_step(fit, steps: int) -> float:
    """Of a training loop; on a GPU until it has done them all."""
    started = time.perf_counter()
    for _ in range(steps):
        fit.train_step()
    if fit.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def peak_of_step(fit) -> float:
    """MiB of weights, optimizer states and everything else in one training step."""
    if fit.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        fit.train_step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() / 2**20
    kept = kept_tensors(fit)
    return peak_beside(fit, kept) + sum(tensor.nbytes for tensor in kept) / 2**20


def peak_beside(fit, kept: list[Tensor]) -> float:
    """MiB of what PeakMemory sees in one training step, without `kept`."""
    with PeakMemory() as memory:
        memory.ignore(*kept)
        fit.train_step()
    return memory.peak / 2**20


def kept_tensors(fit) -> list[Tensor]:
    """Weights, their average, buffers and optimizer states: what is there between steps."""
    models = [fit.model] if fit.ema is None else [fit.model, fit.ema]
    states = [number for state in fit.optimizer.state.values() for number in state.values()]
    return [*(tensor for model in models for tensor in (*model.parameters(), *model.buffers())), *states]


class AttentionClock:
    """`with AttentionClock(model, device) as clock:` adds up the time of the attention layers, forward and backward.

    Between two marks of the GPU's own clock, or of the host's where the host computes.
    """

    def __init__(self, model: nn.Module, device: torch.device):
        self.device = device
        self.layers = [module for module in model.modules() if isinstance(module, Attention)]
        self.marks: list[tuple] = []
        self._open: list = []
        self._hooks: list = []

    def __enter__(self) -> "AttentionClock":
        for layer in self.layers:
            self._hooks += [
                layer.register_forward_pre_hook(self._begin),
                layer.register_forward_hook(self._end),
                layer.register_full_backward_pre_hook(self._begin),
                layer.register_full_backward_hook(self._end),
            ]
        return self

    def __exit__(self, *exception) -> None:
        for hook in self._hooks:
            hook.remove()

    def reset(self) -> None:
        self.marks.clear()

    def seconds(self) -> float:
        if self.device.type == "cpu":
            return sum(end - begin for begin, end in self.marks)
        torch.cuda.synchronize()
        return sum(begin.elapsed_time(end) for begin, end in self.marks) / 1e3

    def _begin(self, *call) -> None:
        self._open.append(self._now())

    def _end(self, *call) -> None:
        self.marks.append((self._open.pop(), self._now()))

    def _now(self):
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def query_gpu(what: str) -> float | None:
    """A number that nvidia-smi knows; None where there is no nvidia-smi or it does not know."""
    gpu = f"GPU-{torch.cuda.get_device_properties().uuid}"
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits", "-i", gpu]
    try:
        return float(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def limits(device: str) -> dict[str, float | None]:
    """At the highest clocks, per second: instructions, float16 multiply-adds of the matrix unit, bytes of the memory;
    and the bytes of the second-level cache. None where unknown.
    """
    if device == "cpu":
        return {"issue": None, "matrix": None, "bandwidth": None, "cache": None}
    facts = torch.cuda.get_device_properties()
    kind = (getattr(facts, "major", 0), getattr(facts, "minor", 0))
    kilohertz = getattr(facts, "clock_rate", 0) or 1e3 * (query_gpu("clocks.max.sm") or 0)
    clocks = facts.multi_processor_count * kilohertz * 1e3
    transfers = 2e3 * getattr(facts, "memory_clock_rate", 0)  # two per clock
    return {
        "issue": LANES.get(kind, 0) * clocks or None,
        "matrix": MATRIX_RATE.get(kind, 0) * clocks or None,
        "bandwidth": transfers * getattr(facts, "memory_bus_width", 0) / 8 or None,
        "cache": getattr(facts, "L2_cache_size", None),
    }
