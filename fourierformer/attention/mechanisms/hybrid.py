"""Layers of different mechanisms in one model, in a cycle."""

from typing import Any

from fourierformer.attention import build, register
from fourierformer.attention.base import Attention, Geometry
from fourierformer.errors import SetupError, did_you_mean

PATTERN = ["softmax", "fourier"]
SHARED = "numbers of different mechanisms cannot be compared"


@register("hybrid", "layers of different mechanisms in turn, each with knobs of its own")
class Hybrid(Attention):
    """Layer i of the model has the mechanism pattern[i mod len(pattern)]: building one gives a layer of that class,
    with its parameters, maps, state and refusals. knobs: {mechanism: {knob: value}}, of those that are not at their
    defaults.
    """

    # refused by the classes of the layers, where they cannot
    cross_ok = padding_ok = rotary_ok = True
    cost, state, source = "of its layers", "of its layers", "ours"

    def __new__(  # type: ignore[misc]  # a layer of another class, so Attention.__init__ is not called again
        cls, geometry: Geometry, *, pattern: list[str] = PATTERN, knobs: dict[str, dict[str, Any]] | None = None
    ) -> Attention:
        if not pattern:
            raise SetupError("attention.pattern=[]: name the mechanism of each layer, as in [softmax,fourier]")
        for name in knobs or {}:
            if name not in pattern:
                raise SetupError(f"attention.knobs.{name}: not in attention.pattern{did_you_mean(name, pattern)}")
        if geometry.value_residual:
            raise SetupError(f"attention 'hybrid' cannot have model.value_residual: {SHARED}")
        name = pattern[geometry.layer % len(pattern)]
        layer = build(name, geometry, **(knobs or {}).get(name, {}))
        if layer.reads_below:
            raise SetupError(f"attention 'hybrid' cannot have '{name}', which reads the layer below: {SHARED}")
        return layer
