"""Settings of single parameters for the optimizer: no weight decay, or a scaled learning rate.

Modules keep them by parameter name, because copies of a model, sharding and `to_empty` make new parameters, without the
attributes of the old ones.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized


@dataclass(frozen=True)
class Mark:
    """Settings of one parameter, beside the optimizer's own."""

    no_weight_decay: bool = False
    lr_multiplier: float = 1.0


def mark(module: nn.Module, name: str, *, no_weight_decay: bool = False, lr_multiplier: float = 1.0) -> None:
    """Mark the parameter `name` of a module, for `marks_of`: for example an attention's own that should not decay.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from fourierformer.marks import mark
        >>> class Scaled(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = nn.Parameter(torch.ones(8, 1))
        ...         mark(self, "scale", no_weight_decay=True)
    """
    module.__dict__.setdefault("parameter_marks", {})[name] = Mark(no_weight_decay, lr_multiplier)


def marks_of(model: nn.Module) -> dict[str, Mark]:
    """The mark of every parameter, by its name in `model.named_parameters()`; for an optimizer of your own.

    Examples:
        >>> from torch import nn
        >>> from fourierformer import FourierAttention
        >>> from fourierformer.marks import marks_of
        >>> model = nn.Sequential(FourierAttention(dim=64, heads=4, radius_shape="head"), nn.Linear(64, 10))
        >>> [name for name, mark in marks_of(model).items() if mark.no_weight_decay]
        ['0.radius']
    """
    marks = {
        parameter: mark
        for module in model.modules()
        for name, mark in getattr(module, "parameter_marks", {}).items()
        for parameter in _parameters(module, name)
    }
    return {name: marks.get(parameter, Mark()) for name, parameter in model.named_parameters()}


def _parameters(module: Any, name: str) -> list[nn.Parameter]:
    """The parameter `name`, or those that torch.nn.utils.parametrize computes it from."""
    if is_parametrized(module, name):
        return list(module.parametrizations[name].parameters(recurse=False))
    return [getattr(module, name)]
