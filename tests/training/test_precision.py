"""The precision of float32 operations of a run."""

import pytest
import torch

from fourierformer.training.precision import set_matmul_precision


@pytest.mark.parametrize(("precision", "reduced"), [("fp32", False), ("tf32", True), ("bf16", True), ("fp16", True)])
def test_only_fp32_has_neither_products_nor_convolutions_in_tf32(precision, reduced):
    """TF32 is torch's "high"; its "medium" has three bits less."""
    torch.backends.cudnn.allow_tf32 = not reduced
    set_matmul_precision(precision)
    assert torch.get_float32_matmul_precision() == ("high" if reduced else "highest")
    assert torch.backends.cudnn.allow_tf32 == reduced
