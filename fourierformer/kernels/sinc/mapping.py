"""torch.vmap of the operators for a CPU and of plain torch: all their tensors have the batch as first dimension."""

from collections.abc import Callable

from torch import Tensor


def folded_into_batch(operator: Callable) -> Callable:
    """The rule for `operator.register_vmap`: the mapped dimension becomes part of the batch."""

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
