"""transformer-mgk: its language model, Transformer-XL's without memory, on which FourierFormer's code is built."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from fourierformer.attention import build
from fourierformer.models.config import LMConfig
from fourierformer.models.lm import WordLM
from outside.cases import Case, load
from outside.released import HEADS, WIDTH, load_without

HEAD = WIDTH // HEADS


def language_model_cases(folder: Path) -> Iterator[Case]:
    torch.manual_seed(0)
    source = folder / "language-modeling/lmtool-fwms/src"
    theirs = load_without(source / "mem_transformer.py", "utils")
    with patch.object(torch.version, "cuda", torch.version.cuda or "0.0"):  # it is split into numbers
        theirs.ProjectedAdaptiveLogSoftmax = load(source / "utils/proj_adaptive_softmax.py").ProjectedAdaptiveLogSoftmax
    yield "softmax: our model", partial(same_model, theirs, 2, "softmax")
    yield "softmax: stops in a debugger", partial(stops_in_a_debugger, theirs)
    yield "MGK: our model with mgk assign=hard second=shift", partial(same_model, theirs, 200, "mgk")
    yield "MGK: update_mode has no effect", partial(update_mode_is_lost, theirs)


def their_model(theirs: Any, kind: int, **options: Any) -> Any:
    return theirs.MemTransformerLM(
        60, 2, HEADS, WIDTH, HEAD, 40, 0.0, 0.0, cutoffs=[20, 40], tie_projs=[False] * 3, attn_type=kind,
        tgt_len=8, ext_len=0, mem_len=0, **options,
    ).double().eval()  # fmt: skip


def same_model(theirs: Any, kind: int, name: str) -> None:
    """-log p of every token, with their weights in our model of the same shape, adaptive softmax included. Exact but
    for positions, whose sines are rounded to float32 in our model."""
    model = their_model(theirs, kind)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if kind == 200:
        for layer in model.layers:
            layer.dec_attn.mu.data.copy_(torch.stack([torch.zeros(HEADS, HEAD), 2 * torch.randn(HEADS, HEAD)]))
    config = LMConfig(name="small", layers=2, dim=WIDTH, heads=HEADS, inner=40, length=8, dropout=0.0)
    knobs = {"assign": "hard", "second": "shift"} if name == "mgk" else {}
    mine = WordLM(config, 60, [20, 40], lambda geometry: build(name, geometry, **knobs)).double().eval()
    given = {
        parameter: value for parameter, value in renamed(model.state_dict()).items() if parameter in mine.state_dict()
    }
    assert not mine.load_state_dict(given, strict=False).missing_keys
    tokens = torch.randint(60, (2, 9))
    with patch.object(theirs, "pdb", SimpleNamespace(set_trace=lambda: None)), torch.no_grad():
        (losses,) = model(tokens[:, :-1].T, tokens[:, 1:].T, softmax_keep_order=True)
        torch.testing.assert_close(mine(tokens[:, :-1], tokens[:, 1:]).view(2, 8), losses.T, rtol=1e-6, atol=1e-6)


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "word_emb.emb_layers.0": "embedding", "crit.out_layers.0.bias": "output.bias", "crit": "output",
        ".dec_attn.o_net": ".attention.proj", ".dec_attn.layer_norm": ".attention_norm",
        ".pos_ff.CoreNet": ".feed_forward", ".pos_ff.layer_norm": ".feed_forward_norm",
    }  # fmt: skip
    found = {}
    for name, weight in weights.items():
        for before, after in names.items():
            name = name.replace(before, after)
        if name.endswith(".q_net.weight"):
            both = [weight, weights[name.replace("q_net", "kv_net")]]
            name, weight = name.replace("dec_attn.q_net", "attention.qkv"), torch.cat(both)
        elif name.endswith(".mu"):
            name, weight = name.replace("dec_attn.mu", "attention.shift"), weight[1][:, None]
        elif ".cluster_" in name:
            weight = weight.flip(0)  # their head has the clusters in reverse order
        found[name] = weight
    return found


def stops_in_a_debugger(theirs: Any) -> None:
    stops = []
    with patch.object(theirs, "pdb", SimpleNamespace(set_trace=lambda: stops.append(1))):
        their_model(theirs, 2)(torch.randint(60, (8, 2)), torch.randint(60, (8, 2)))
    assert len(stops) == 2


def update_mode_is_lost(theirs: Any) -> None:
    model = their_model(theirs, 200, update_mode="rbf2keys")
    assert {layer.dec_attn.update_mode for layer in model.layers} == {"hard"}
