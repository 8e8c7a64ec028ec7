"""Products of torch with the digits of a tensor core, on a CPU."""

import torch
from torch.overrides import TorchFunctionMode

from fourierformer.attention.engines.full_product import cut_to_tf32


class Tf32(TorchFunctionMode):
    """Cuts the operands of every matrix product, as a tensor core does with float32."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            args = [cut_to_tf32(x.contiguous()) if x.dtype == torch.float32 else x for x in args]
        return function(*args, **(kwargs or {}))
