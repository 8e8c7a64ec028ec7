"""Numeric precision of a run: autocast, and the precision of float32 matrix products."""

from contextlib import AbstractContextManager, nullcontext

import torch

from fourierformer.training.config import Precision


def set_matmul_precision(precision: Precision) -> None:
    """Set the precision of float32 matrix products and convolutions: full float32 for fp32, else TF32 (on tensor
    cores), which torch takes for convolutions unless told otherwise."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
