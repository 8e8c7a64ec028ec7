"""The precision of torch's products of float32 on a GPU."""

import torch


def uses_tf32() -> bool:
    """Whether they have TF32's digits, ten bits of each factor."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


# torch.compile cannot read the setting inside a graph; it takes it as a constant, and compiles anew when it changes.
# (torch.compiler.assume_constant_result sets this too, but imports the compiler.)
uses_tf32._dynamo_marked_constant = True  # type: ignore[attr-defined]
