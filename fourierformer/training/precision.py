"""Numeric precision of a run: what autocast and float32 matrix products may do."""

from contextlib import AbstractContextManager, nullcontext

import torch

from fourierformer.training.config import Precision


def set_matmul_precision(precision: Precision) -> None:
    """fp32 keeps full float32 products; the others allow tensor cores for what stays float32."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
