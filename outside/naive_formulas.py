"""flash-linear-attention, naive.py of its operations: our formulas are theirs."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fourierformer.attention import Geometry, build
from fourierformer.attention.engines.delta_rule import delta_rule
from fourierformer.attention.engines.recurrence import Form, decayed_sums, linear_attention
from outside.cases import Case, load


def naive_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    batch, heads, tokens, width = 2, 3, 40, 8
    q, k, v = torch.randn(3, batch, heads, tokens, width)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, log_gate = torch.rand(batch, heads, tokens), torch.rand(batch, heads, tokens).log()
    log_gates = torch.rand(batch, heads, tokens, width).log()
    scaled = q * width**-0.5
    head = torch.log1p(-(2.0 ** (-5 - torch.arange(heads))))[:, None, None].expand(batch, heads, tokens, 1)

    def naive(name: str, function: str, *inputs: Tensor, swap: bool = True, **options) -> Tensor:
        """Its output, of inputs (B, H, N, ...); `swap` where its layout is (B, N, H, ...)."""
        call = getattr(load(folder / f"fla/ops/{name}/naive.py"), function)
        found = call(*(x.transpose(1, 2) if swap else x for x in inputs), **options)
        found = found[0] if isinstance(found, tuple) else found
        return found.transpose(1, 2) if swap else found

    def same(ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> None:
        torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-5)

    for form in (form for form in get_args(Form) if form != "auto"):
        decay = partial(decayed_sums, scaled, k, v, form=form)
        for name, ours, theirs in (
            ("delta_rule", partial(delta_rule, scaled, k, v, beta, form=form),
             partial(naive, "delta_rule", "delta_rule_recurrence", q, k, v, beta, swap=False)),
            ("gated_delta_rule", partial(delta_rule, scaled, k, v, beta, log_decay=log_gate, form=form),
             partial(naive, "gated_delta_rule", "naive_recurrent_gated_delta_rule", q, k, v, beta, log_gate)),
            ("retention", partial(decay, head), partial(naive, "retention", "naive_retention", q, k, v, swap=False)),
            ("simple_gla", partial(decay, log_gate[..., None]),
             partial(naive, "simple_gla", "naive_recurrent_simple_gla", q, k, v, log_gate)),
            ("gla", partial(decay, log_gates), partial(naive, "gla", "naive_recurrent_gla", q, k, v, log_gates)),
            ("linear_attn", partial(linear_attention, q.exp(), k.exp(), v, causal=True, form=form),
             partial(naive, "linear_attn", "naive_recurrent_linear_attn", q.exp(), k.exp(), v, normalize=True)),
        ):  # fmt: skip
            yield f"{name}, {form}", partial(same, ours, theirs)
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    geometry = Geometry(dim=heads * width, heads=heads, length=tokens, causal=True)
    r = torch.randn_like(q)
    for name, ours, theirs in (
        ("forgetting", (q, torch.cat([k, log_gate[..., None]], -1)),
         partial(naive, "forgetting_attn", "naive_forgetting_attn", q, k, v, log_gate)),
        ("parallax", (torch.cat([q, r], -1), k), partial(naive, "parallax", "naive_parallax", q, r, k, v)),
    ):  # fmt: skip
        weigh: Any = build(name, geometry).weights
        yield name, partial(same, lambda weigh=weigh, of=ours: weigh(*of, visible) @ v, theirs)
