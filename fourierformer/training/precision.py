"""Numeric precision of a run: what autocast and float32 matrix products may do."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


def set_matmul_precision(precision: Precision) -> None:
    """fp32 keeps full float32 products; the others allow tensor cores for what stays float32."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()
