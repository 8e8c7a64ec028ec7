"""No attention: the control in which no token sees another one."""

import torch
from torch import Tensor

from fourierformer.attention import register
from fourierformer.attention.base import Attention, Keep, State


@register("none", "the control: the weighted sum is 0, so no token sees another one")
class NoAttention(Attention):
    """y_i = 0, so the layer adds the bias of its output projection, if it has one.

    A language model then predicts a word from the previous word alone. The projections remain, with gradients of 0:
    shapes, number of parameters and random numbers are those of softmax.
    """

    rotary_ok = True
    qk_norm_ok = "its output is 0, whatever queries and keys are"
    partial_queries = padding_ok = True
    cross_ok = "it reads no sequence"
    cost, state, source = "0", "0", "ours"

    def mix(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, *, keep: Keep = None, cross: bool = False) -> Tensor:
        return q.masked_fill(q.new_ones((), dtype=torch.bool), 0.0)  # new zeros would have no gradient

    def maps(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)

    def start(self, batch: int) -> State:
        return ()

    def mix_step(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.mix(q, k, v, x), state
