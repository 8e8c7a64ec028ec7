"""transformer-mgk (Nguyen et al. 2022): its layers with mixtures of Gaussian and of linear keys."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outside.cases import Case
from outside.released import (
    CHANGED,
    EXACT,
    FLOAT,
    HEADS,
    LANGUAGE,
    WIDTH,
    followed,
    inputs,
    language,
    largest_difference,
    load_without,
    ours,
    with_weights,
)

HEAD = WIDTH // HEADS


def mixture_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    theirs = load_without(folder / "language-modeling/lmtool-fwms/src/mem_transformer.py", "utils")
    theirs.fast_weight_sum = lambda q, k, v, _: (q @ k.mT).tril() @ v  # for theirs in CUDA
    yield "MGKAttn, hard2keys: mgk, assign=hard", partial(two_keys, theirs, "hard2keys", EXACT)
    yield "MGKAttn, rbf2keys: mgk, but for 1e-6 in the denominator", partial(two_keys, theirs, "rbf2keys", FLOAT)
    yield "MGKAttn, hard: mgk, assign=hard second=shift", partial(shifted_keys, theirs, "hard", EXACT)
    yield "MGKAttn, rbf: mgk, second=shift, but for 1e-6", partial(shifted_keys, theirs, "rbf", FLOAT)
    yield "MGKAttn, rbf2keys: shares per position, so at most 256 tokens", partial(too_long, theirs)
    yield "MGKAttn, rbf2keys: 0 where all exponentials underflow", partial(underflows, theirs)
    for mode in ("soft", "soft2keys"):
        yield f"MGKAttn, {mode}: shares depend on later queries", partial(shares_of_later_queries, theirs, mode)
    yield "mixture of linear keys: mlk, times 1 / sqrt(D)", partial(linear_keys, theirs)


def two_keys(theirs: Any, mode: str, tolerance: dict) -> None:
    layer, x = theirs.MGKAttn(HEADS, WIDTH, HEAD, 0.0, update_mode=mode).double(), inputs()
    same = with_weights(ours("mgk", LANGUAGE, assign="hard" if mode == "hard2keys" else "soft"), *projections(layer))
    if mode == "rbf2keys":
        share(layer, same)
    torch.testing.assert_close(language(layer, x), followed(layer, x, same(x)), **tolerance)


def share(layer: Any, same: Any) -> None:
    """The same shares of both keys: one per head, and not a half."""
    first = torch.tensor([0.9, 0.3, 0.5], dtype=torch.float64)
    for parameter, value in ((layer.pi0, first), (layer.pi1, 1 - first)):
        parameter.data.copy_(value.view(-1, *[1] * (parameter.dim() - 1)))
    same.mixture.data.copy_(torch.stack([first, 1 - first], dim=1).log())


def projections(layer: Any) -> list[nn.Linear]:
    return [layer.o_net, layer.q_net, layer.kv_net]


def shifted_keys(theirs: Any, mode: str, tolerance: dict) -> None:
    """With a shift that moves keys towards queries: the second key counts, though its kernel is the narrower one."""
    layer, x = theirs.MGKAttn(HEADS, WIDTH, HEAD, 0.0, update_mode=mode).double(), inputs() + 1
    apart = layer.kv_net(x)[..., :WIDTH] - layer.q_net(x)
    layer.mu.data[1] = apart.mean((0, 1)).view(HEADS, HEAD)
    same: Any = ours("mgk", LANGUAGE, assign="hard" if mode == "hard" else "soft", second="shift")
    with_weights(same, *projections(layer)).shift.data.copy_(layer.mu[1][:, None])
    if mode == "rbf":
        share(layer, same)
    torch.testing.assert_close(language(layer, x), followed(layer, x, same(x)), **tolerance)


def too_long(theirs: Any) -> None:
    x = inputs(tokens=257)
    with pytest.raises(RuntimeError, match="must match"):
        language(theirs.MGKAttn(HEADS, WIDTH, HEAD, 0.0, update_mode="rbf2keys").double(), x)
    assert ours("mgk", LANGUAGE)(x).isfinite().all()


def underflows(theirs: Any) -> None:
    layer, x = theirs.MGKAttn(HEADS, WIDTH, HEAD, 0.0, update_mode="rbf2keys"), 100 * inputs().float()
    nothing = followed(layer, x, torch.zeros_like(x))
    lost = (language(layer, x) - nothing).abs().amax(-1) < CHANGED
    assert lost.float().mean() > 0.5
    same = with_weights(ours("mgk", LANGUAGE, torch.float32), *projections(layer))
    assert (same(x).norm(dim=-1) > 1).all()


def shares_of_later_queries(theirs: Any, mode: str) -> None:
    layer, x = theirs.MGKAttn(HEADS, WIDTH, HEAD, 0.0, update_mode=mode).double(), inputs()
    found = []
    for later in (x[:, 8:], torch.randn_like(x[:, 8:])):
        layer.pi.fill_(0.5)
        language(layer, torch.cat([x[:, :8], later], dim=1), train=True)
        found.append(layer.pi[..., :8].clone())
    assert largest_difference(*found) > CHANGED


def linear_keys(theirs: Any) -> None:
    made = theirs.CudaFastWeightSumTwoLinearTransformerLayer
    layer, x = made(HEADS, WIDTH, HEAD, 0.0, layer_id=0, num_layer=1, eps=1e-6).double(), inputs()
    q, first, second, v = layer.qkv_net.weight.view(HEADS, 4, HEAD, WIDTH).transpose(0, 1).flatten(1, 2)
    same = ours("mlk", LANGUAGE)
    same.load_state_dict(
        {"qkv.weight": torch.cat([q, first, second, v]), "proj.weight": layer.o_net.weight}, strict=False
    )
    share(layer, same)
    torch.testing.assert_close(language(layer, x), followed(layer, x, same(x) / HEAD**0.5), **FLOAT)
