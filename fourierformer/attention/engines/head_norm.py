"""RMSNorm of the mixture of a head, for mechanisms whose weights have no fixed sum."""

import torch.nn.functional as F
from torch import Tensor


def head_norm(mixed: Tensor, scale: Tensor) -> Tensor:
    """mixed (..., D) divided by its root mean square, times scale (D), which all heads share."""
    return F.rms_norm(mixed, (mixed.shape[-1],), scale.to(mixed.dtype), eps=1e-5)
