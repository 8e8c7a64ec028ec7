"""Attention that other authors released: loading it where parts of its code are missing, and comparing it with ours."""

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm.models.vision_transformer  # noqa: F401  (their files import it while parts of timm are stand-ins)
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fourierformer.attention import Attention, Geometry, build
from outside.cases import Skipped, load

WIDTH, HEADS, TOKENS = 24, 3, 12
LANGUAGE = Geometry(dim=WIDTH, heads=HEADS, length=TOKENS, causal=True)
IMAGES = Geometry(dim=WIDTH, heads=HEADS, length=TOKENS, causal=False, bias=True)
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}  # of float64
FLOAT: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}  # what is computed in float32, or has 1e-6 more in a denominator
CHANGED = 1e-3  # larger than any rounding here


def load_without(path: Path, *absent: str) -> Any:
    """The module in a file; of the packages in `absent` every name that it imports is an empty class."""
    if not path.is_file():
        raise Skipped(f"{path.name} is not in this copy")
    imported = re.findall(r"^(?:from|import) +([\w.]+)", path.read_text(encoding="utf-8"), flags=re.M)
    wanted = {name for name in imported if any(f"{name}.".startswith(f"{package}.") for package in absent)}
    with patch.dict(sys.modules, {name: stand_in(name) for name in {*absent, *wanted}}):
        return load(path)


def stand_in(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    accepts_all = {"__new__": lambda cls, *_, **__: object.__new__(cls)}
    module.__getattr__ = lambda name: type(name, (), accepts_all)  # type: ignore[method-assign]
    return module


class OnCpu(TorchFunctionMode):
    """Code that names a GPU runs on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    def __enter__(self):
        self.current = patch("torch.cuda.current_device", lambda: 0)
        self.current.start()
        return super().__enter__()

    def __exit__(self, *error):
        self.current.stop()
        return super().__exit__(*error)


def ours(name: str, geometry: Geometry, dtype: torch.dtype = torch.float64, **knobs: Any) -> Attention:
    return build(name, geometry, **knobs).to(dtype).eval()


def with_weights(layer: Attention, out: nn.Linear, *projections: nn.Linear) -> Attention:
    """Our layer with projections of theirs: of queries, keys, values, and of the output."""
    weights = {"qkv.weight": torch.cat([part.weight for part in projections]), "proj.weight": out.weight}
    assert not layer.load_state_dict(weights, strict=False).unexpected_keys
    return layer


def inputs(*, tokens: int = TOKENS) -> Tensor:
    return torch.randn(2, tokens, WIDTH, dtype=torch.float64)


def language(layer: nn.Module, x: Tensor, *, train: bool = False, **below: Tensor) -> Tensor:
    """A layer of Transformer-XL's code, attention and what follows it: (B, N, dim) -> (B, N, dim)."""
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()[:, :, None]
    with torch.no_grad():
        found = layer.train(train)(x.transpose(0, 1), attn_mask=hidden, **below)
    return (found[0] if isinstance(found, tuple) else found).transpose(0, 1)


def followed(layer: Any, x: Tensor, mixed: Tensor) -> Tensor:
    """What follows attention in such a layer: the residual sum and its norm, theirs."""
    return F.layer_norm(x + mixed, x.shape[-1:], layer.layer_norm.weight, layer.layer_norm.bias).detach()


def change_before(call: Callable[[Tensor], Tensor], x: Tensor, place: int) -> float:
    """How much outputs before a place change where all inputs from there on are others: 0 in a causal layer."""
    other = torch.cat([x[:, :place], torch.randn_like(x[:, place:])], dim=1)
    return (call(x) - call(other))[:, :place].abs().max().item()


def largest_difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
