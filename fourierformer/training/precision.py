"""Numeric precision of a run: what autocast and float32 matrix products may do."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

Precision = Literal["fp32", "tf32", "bf16"]


def set_matmul_precision(precision: Precision) -> None:
    """fp32 keeps full float32 products; tf32 and bf16 allow tensor cores for what stays float32."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()
