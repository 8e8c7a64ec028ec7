"""The operators for a CPU and of plain torch: their registration, and torch.vmap of them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.library import CustomOpDef


def cpu_operator(name: str, function: Callable) -> CustomOpDef:
    """A function as an operator of torch. On a CPU it is called directly: the wrapper of custom_op imports torch's
    compiler at its first call, which takes two seconds in a run that compiles nothing."""
    operator = torch.library.custom_op(name, function, mutates_args=())
    torch.library.impl(name, "CPU", function)
    return operator


def folded_into_batch(operator: Callable) -> Callable:
    """The rule for `operator.register_vmap`: the mapped dimension becomes part of the batch, the first dimension of
    all tensors."""

    def mapped(info, in_dims, *arguments):
        size, folded = info.batch_size, []
        for x, dim in zip(arguments, in_dims, strict=True):
            if isinstance(x, Tensor):
                x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
                # a seed, which has no batch: one for all examples, which draw from it one after the other
                x = x[0] if x.dim() == 1 else x.flatten(0, 1)
            folded.append(x)
        results = operator(*folded)
        return tuple(x.unflatten(0, (size, -1)) for x in results), (0,) * len(results)

    return mapped
