"""A layer as generation calls it."""

import torch

from fourierformer.attention import Attention


def one_by_one(layer: Attention, x: torch.Tensor) -> torch.Tensor:
    """The outputs when tokens (B, N, C) come one after the other; the state must not grow."""
    state, outputs = layer.start(len(x)), []
    sizes = [t.shape for t in state]
    for position, token in enumerate(x.split(1, dim=1)):
        output, state = layer.step(token, state, position)
        outputs.append(output)
    assert [t.shape for t in state] == sizes
    return torch.cat(outputs, dim=1)
