"""Parts that the backends' torch operators share: registration, derivatives, torch.vmap, counts of operations."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils.flop_counter import register_flop_formula

from fourierformer.kernels.first_derivatives import refuse_second_derivative


def direct_operator(name: str, *devices: str) -> Callable[[Callable], CustomOpDef]:
    """Register a function as a torch operator that these devices call without custom_op's wrapper, which takes the host
    2 to 6 us a call and imports torch's compiler at the first: two seconds in a run that compiles nothing."""

    def register(function: Callable) -> CustomOpDef:
        defined = torch.library.custom_op(name, function, mutates_args=())
        torch.library.impl(name, devices, function)
        return defined

    return register


def register_derivative(forward: CustomOpDef, backward: CustomOpDef) -> None:
    """Make `backward` the derivative of `forward`, which has none itself.

    forward: q, k, v, radius, keep, options -> output, and results that only backward needs.
    backward: doutput, the five tensors, the results of forward, options -> gradients of the first four.
    """

    def save(ctx, inputs, output) -> None:
        ctx.options = inputs[5:]
        ctx.save_for_backward(*inputs[:5], *output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # torch would fill one tensor of zeros per result without a gradient

    def differentiate(ctx, doutput, *_):
        if doutput is None:
            return (None,) * (5 + len(ctx.options))
        return *backward(doutput, *ctx.saved_tensors, *ctx.options), None, *(None for _ in ctx.options)

    forward.register_autograd(differentiate, setup_context=save)
    backward.register_autograd(refuse_second_derivative)


def count_operations(operator: Callable, *, per_coordinate: int, per_value: int, first: int = 0) -> None:
    """Register the floating-point operations of an operator whose arguments hold q, k, v from index `first` on: all N M
    pairs count, masked or not, as torch counts those of softmax attention."""

    @register_flop_formula(operator)
    def _(*shapes, **_) -> int:
        (batch, heads, queries, width), k_shape, v_shape = shapes[first : first + 3]
        return batch * heads * queries * k_shape[2] * (per_coordinate * width + per_value * v_shape[3])


def register_vmap(operator: CustomOpDef) -> None:
    """Let torch.vmap fold the mapped dimension into the batch, the first dimension of all tensors."""

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

    operator.register_vmap(mapped)
