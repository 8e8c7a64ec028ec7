"""Batches that are drawn from a seed instead of read from files."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from fourierformer.transfer import to_device


@dataclass(frozen=True)
class DrawnRows:
    """A batch. Each field is a tensor with a row for every sequence, or None."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __getitem__(self, rows: slice) -> Self:
        return self.each(lambda part: part[rows])

    def to(self, device: torch.device) -> Self:
        return self.each(lambda part: to_device(device, part)[0])

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(part) for name, part in parts.items() if part is not None})
