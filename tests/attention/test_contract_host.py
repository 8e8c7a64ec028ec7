"""No mechanism makes the host wait for a GPU in a step of training."""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fourierformer import attention, fourier_attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms import fourier_disc, lsh, performer
from fourierformer.transfer import to_device
from tests.helpers.host_reads import HostReads
from tests.helpers.mechanisms import CHOICES, LENGTH, tokens


def reads_of(layer: attention.Attention, x: Tensor, keep: Tensor | None) -> list[str]:
    one_hot = F.one_hot
    with HostReads(x, keep, *layer.parameters(), *layer.buffers()) as reads:

        def unwatched(*arguments):  # on a CPU it checks the range of the classes, on CUDA it does not
            with reads.paused():
                result = one_hot(*arguments)
            reads.mark(result)
            return result

        with ExitStack() as patches:
            patches.enter_context(patch.object(F, "one_hot", unwatched))
            for module in (lsh, performer):
                sent = patch.object(module, "to_device", lambda *arguments: reads.sent(to_device(*arguments)))
                patches.enter_context(sent)
            layer.begin_step(0)
            losses = layer(x, **({} if keep is None else {"keep": keep})).sum((1, 2))
            if layer.adds_loss:
                losses = losses + layer.auxiliary_loss(losses.detach())
            losses.sum().backward()
            layer.end_step(lambda total: total, torch.ones_like(losses[0]))
    return [what for _, what in reads.operations]


@pytest.mark.parametrize(("name", "causal"), CHOICES)
@pytest.mark.parametrize("padded", [False, True])
def test_no_mechanism_waits(name, causal, padded, monkeypatch):
    monkeypatch.setattr(fourier_disc, "why_not_compiled", lambda q, power: "as on a GPU")
    if padded and attention.mechanism(name).padding_ok is not True:
        pytest.skip("it has no padding")
    text = causal and not attention.mechanism(name).needs_grid
    image = {} if text else {"grid": (14, 14), "prefix": 1}
    layer = attention.build(name, Geometry(dim=32, heads=4, length=LENGTH, causal=causal, **image)).train()
    x = tokens(LENGTH).requires_grad_()
    layer(x)  # makes tables of this length, once
    assert reads_of(layer, x, torch.ones(x.shape[:2], dtype=torch.bool) if padded else None) == []


def test_the_public_function_does_not_wait_either():
    q, k, v = torch.randn(3, 1, 2, 10, 4)
    with HostReads(q, k, v) as reads:
        fourier_attention(q, k, v, radius=2.0, causal=True, backend="portable")
    assert reads.operations == []


class Waits(attention.Attention):
    def mix(self, q, k, v, x, *, keep=None, cross=False):
        return v * torch.tensor(1.0, device=v.device) if x.sum() < 1e9 else v


def test_a_mechanism_that_waits_is_found():
    layer = Waits(Geometry(dim=32, heads=4, length=LENGTH, causal=True))
    assert reads_of(layer, tokens(LENGTH), None) == ["aten._local_scalar_dense.default", "tensor"]
