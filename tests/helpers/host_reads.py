"""Finds what would make the host wait for a GPU, on a CPU.

Some tensors stand for those of a GPU: weights, optimizer states, counters, the batches that were sent to the device,
and all that is computed from any of them. Reading one on the host, or an operation whose result has a size that only
the device knows, would wait for all work before it. So would sending a tensor of the host without non_blocking=True.
"""

import contextlib
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# results that the host has to know, or whose size it has to know
READS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}  # a mask is counted first
COPIES = {"tolist", "numpy", "cpu", "__array__"}  # on a CPU nothing of these reaches the dispatcher
MAKERS = {"tensor", "as_tensor"}  # out of numbers of the host


class HostReads:
    """`with HostReads(*tensors) as reads:` collects in `reads.operations` pairs of (reads.label, what was done)."""

    def __init__(self, *on_device: Tensor):
        self.label: object = None
        self.operations: list[tuple[object, str]] = []
        self.watching = True
        self._device: set[int] = set()
        self._modes = [_Operations(self), _Calls(self)]
        self.mark(*on_device)

    def __enter__(self) -> "HostReads":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exception)

    def sent(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors as they are after the transfer: copies, which are the device's, while the host keeps its own."""
        copies = [tensor.clone() for tensor in tensors]
        self.mark(copies)
        return copies

    def elsewhere(self, batches: Iterator) -> Iterator:
        """The same batches; what makes them works on the host alone and is not watched."""
        while True:
            with self.paused():
                batch = next(batches)
            yield batch

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.watching = False
        yield
        self.watching = True

    def mark(self, *values: object) -> None:
        """These tensors, also inside lists and mappings, are the device's."""
        for tensor in tensors_in(values):
            self._mark(tensor.untyped_storage())

    def on_device(self, *values: object) -> bool:
        return any(tensor.untyped_storage()._cdata in self._device for tensor in tensors_in(values))

    def note(self, what: str) -> None:
        if self.watching:
            self.operations.append((self.label, what))

    def _mark(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._device:
            self._device.add(storage._cdata)
            weakref.finalize(storage, self._device.discard, storage._cdata)


class _Operations(TorchDispatchMode):
    """What the dispatcher sees, in forward, backward and optimizer."""

    def __init__(self, reads: HostReads):
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        of_device = self.reads.on_device(args, kwargs)
        if of_device and waits(function, args, kwargs):
            self.reads.note(str(function))
        result = function(*args, **kwargs)
        if of_device:
            self.reads.mark(result)
        return result


class _Calls(TorchFunctionMode):
    """Calls from Python that leave no operation behind where device and host are one."""

    def __init__(self, reads: HostReads):
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        of_device = self.reads.on_device(args)
        if of_device and (name in COPIES or (name == "to" and "cpu" in (*args[1:], kwargs.get("device")))):
            self.reads.note(name)
        if not of_device and (name == "to" or name in MAKERS) and sends(args, kwargs):
            self.reads.note(name)
        if of_device and (name == "new_tensor" or (name == "copy_" and self._from_host(*args[:2], **kwargs))):
            self.reads.note(name)
        return function(*args, **kwargs)

    def _from_host(self, own: Tensor, other: Tensor, non_blocking: bool = False) -> bool:
        return self.reads.on_device(own) and not self.reads.on_device(other) and not non_blocking


def waits(function, args: tuple, kwargs: dict) -> bool:
    name = function._schema.name.split("::")[1]
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and len(tensors_in(args)) > 1
    if name in INDEXING:
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1]))
    return name in READS


def sends(args: tuple, kwargs: dict) -> bool:
    """Whether a device is named and the host waits until everything is there."""
    named = any(isinstance(value, str | torch.device) for value in (*args, kwargs.get("device")))
    return named and not kwargs.get("non_blocking", False)


def tensors_in(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
