"""Clocks and memory meters of all benchmarks, for calls and for training steps.

torch.utils.benchmark.Timer repeats one call; here calls take turns with softmax and go through several sets of inputs,
since busy moments and warm caches would otherwise favour one of them.
"""

import math
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.floors import query_gpu
from fourierformer.attention.base import layers_of

PATIENCE = 8  # seconds for the repeats of one cell; slow calls are repeated less often (column "repeats")


class PeakMemory(TorchDispatchMode):
    """Peak bytes of storages created inside the block, without those of the inputs."""

    def __init__(self, inputs: Iterable[Tensor]):
        super().__init__()
        self.live, self.peak, self.seen = 0, 0, {t.untyped_storage()._cdata for t in inputs}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace in ("aten", "prims", "fourierformer") and not function.is_view:
            for item in result if isinstance(result, list | tuple) else [result]:
                if isinstance(item, Tensor):
                    self._add(item.untyped_storage())
        return result

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


def take_turns(clocks: Sequence[Callable[[], float]], turns: int, seconds: float = math.inf) -> list[list[float]]:
    """The times of each clock, turn by turn, so that a busy moment of the machine affects all of them.

    Every other turn is in reverse order, so that no clock always finds the caches of the same predecessor. The first
    turn is always taken, none begins after the seconds.
    """
    until = time.monotonic() + seconds
    times: list[list[float]] = [[] for _ in clocks]
    order = list(zip(clocks, times, strict=True))
    while not times[0] or (len(times[0]) < turns and time.monotonic() < until):
        for clock, own in order:
            own.append(clock())
        order.reverse()
    return times


def times_cpu(
    call: Callable, sets: list[tuple], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Milliseconds of each call; clock=time.process_time is processor time, which other programs disturb less."""
    times = []
    for number in range(repeats):
        start = clock()
        call(*sets[number % len(sets)])
        times.append((clock() - start) * 1e3)
    return times


def times_cuda(call: Callable, sets: list[tuple], repeats: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for number, (start, end) in enumerate(events):
        start.record()
        call(*sets[number % len(sets)])
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def peak_mebibytes(device: str, call: Callable[[], object], inputs: Iterable[Tensor]) -> float:
    """Peak of one call beyond its inputs."""
    if device == "cpu":
        with PeakMemory(inputs) as memory:
            call()
        return memory.peak / 2**20
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(call: Callable, sets: list[tuple], repeats: int, device: str, softmax: Callable) -> dict[str, object]:
    """Median time after a warm-up (compiling, tuning, then every input set once), and the peak of one more call.

    On a CPU in turns with softmax, because other programs slow both alike; the ratio is the median over turns.
    """
    timer = times_cpu if device == "cpu" else times_cuda
    call(*sets[0])
    slowest = max(timer(call, sets, len(sets)))
    repeats = min(repeats, max(2, int(PATIENCE * 1e3 / slowest)))
    row = {}
    if device == "cpu":
        softmax(*sets[0])
        times, peer = take_turns([lambda: timer(call, sets, 1)[0], lambda: timer(softmax, sets, 1)[0]], repeats)
        row["time x softmax"] = statistics.median(ours / theirs for ours, theirs in zip(times, peer, strict=True))
    else:
        times = timer(call, sets, repeats)
    leaves, doutput = sets[0]
    peak = peak_mebibytes(device, lambda: call(leaves, doutput), [*leaves, doutput])
    row |= {"ms": statistics.median(times), "MiB": peak, "repeats": repeats}
    return row | {"sm MHz": query_gpu("clocks.sm") if device == "cuda" else None}


def seconds_per_step(fit, steps: int) -> float:
    """Mean time of the next `steps` training steps; on a GPU until the last one is finished."""
    started = time.perf_counter()
    for _ in range(steps):
        fit.train_step()
    if fit.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps


def memory_of_step(fit) -> tuple[float, float]:
    """MiB that stay between steps (weights, their average, buffers, optimizer states), and the peak of one step beside
    them. It needs a first step before, which makes the optimizer's states."""
    models = [fit.model] if fit.ema is None else [fit.model, fit.ema]
    states = [number for state in fit.optimizer.state.values() for number in state.values()]
    kept = [*(tensor for model in models for tensor in (*model.parameters(), *model.buffers())), *states]
    return sum(tensor.nbytes for tensor in kept) / 2**20, peak_mebibytes(fit.device.type, fit.train_step, kept)


class AttentionClock:
    """`with AttentionClock(model, device) as clock:` adds up the time of the attention layers, forward and backward,
    between marks of the clock of the GPU, or of the host where the host computes."""

    def __init__(self, model: nn.Module, device: torch.device):
        self.device, self.layers = device, layers_of(model)
        self.marks: list[tuple] = []
        self._open: list = []
        self._hooks: list = []

    def __enter__(self) -> "AttentionClock":
        for layer in self.layers:
            begins = layer.register_forward_pre_hook, layer.register_full_backward_pre_hook
            ends = layer.register_forward_hook, layer.register_full_backward_hook
            self._hooks += [register(self._begin) for register in begins]
            self._hooks += [register(self._end) for register in ends]
        return self

    def __exit__(self, *exception) -> None:
        for hook in self._hooks:
            hook.remove()

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
