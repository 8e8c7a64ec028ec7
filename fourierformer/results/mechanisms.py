"""The table of attention choices in docs/attention.md, from what the mechanisms say about themselves."""

import torch

from fourierformer import attention
from fourierformer.attention import Geometry

# the small language model and DeiT-tiny: where the numbers of added parameters are counted
LANGUAGE = Geometry(dim=128, heads=8, length=256, causal=True)
VISION = Geometry(dim=192, heads=3, length=197, causal=False, bias=True, grid=(14, 14), prefix=1)
HEADER = ("`attention=`", "idea", "for", "time", "state", "parameters", "source")
NOTE = """\
N tokens, D coordinates per head, C = H D channels, M features. Time is per layer and sequence. State: the numbers per
layer that decoding one more token needs. Parameters: beyond the four projections, per layer of `lm_small` (`deit_tiny`
for what only vision can use)."""


def mechanism_table() -> str:
    """Markdown: one row per name."""
    rows = [_row(name) for name in attention.available()]
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{NOTE}"


def _row(name: str) -> tuple[str, ...]:
    cls = attention.mechanism(name)
    language = name in attention.available(causal=True, grid=False)
    vision = name in attention.available(causal=False)
    where = " and ".join(["language"] * language + ["vision"] * vision)
    added = f"{_added(name, LANGUAGE if language else VISION):+,}".replace("+0", "0")
    return f"`{name}`", attention.idea(name), where, cls.cost, cls.state, added, cls.source


def _added(name: str, geometry: Geometry) -> int:
    """Parameters beyond (or below) the four projections of dim x dim."""
    with torch.device("meta"):
        layer, plain = attention.build(name, geometry), attention.build("softmax", geometry)
    return _count(layer) - _count(plain)


def _count(layer: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())
