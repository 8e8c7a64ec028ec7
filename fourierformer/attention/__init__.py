"""The registry of attention mechanisms by name, all under one contract.

A mechanism is one class, registered under one name or several (the same class with other defaults), in a file of
`mechanisms/`; `configs/attention/<name>.yaml` names that file and holds `name` and exactly its knobs (tests compare
both). `engines/` holds computations shared by mechanisms, `public.py` a layer for any model. Another installed package
adds mechanisms by entry points of the group `fourierformer.attention`.

The contract (see base.py, tests/attention/test_contract*.py):
* __init__(geometry, *, knobs...): every knob keyword-only, typed, with a default; no **kwargs.
* forward(x): (B, N, dim) -> (B, N, dim); any N from 1 to geometry.length; batch rows independent; under
  geometry.causal no output depends on a later input.
* forward(x, memory, keep=...): other sequences and padding, where `cross_ok` and `padding_ok` are True (see base.py).
* limits are stated with their reason: `build` refuses by `causal_ok` / `full_ok` / `needs_grid`, `forward` by
  `cross_ok` / `padding_ok`.
* `start` and `mix_step`, where a state of constant size exists, yield the output of `forward`, token by token.
* random state is a buffer drawn from a generator seeded by (geometry.seed, geometry.layer); draws, additions to the
  loss and statistics in training are functions of that, the step and the row of the global batch.
"""

import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from fourierformer.attention.base import Attention, Geometry
from fourierformer.checking import has_type, type_text
from fourierformer.errors import SetupError, did_you_mean, short

__all__ = ["Attention", "Geometry", "available", "build", "check_name", "idea", "knobs", "mechanism", "register"]


@dataclass(frozen=True)
class Entry:
    cls: type[Attention]
    idea: str  # one line for the table of attentions
    defaults: dict[str, object]  # knobs whose default differs under this name


_registry: dict[str, Entry] = {}
YAML_WORDS = ("true", "false", "yes", "no", "on", "off", "null")


def register(name: str, idea: str = "", **defaults):
    """Class decorator: register the class as the attention `name`, with these defaults of knobs.

    `idea` is its line in the table of attentions. Mistakes raise a SetupError that states the correction.

    Examples:
        >>> from fourierformer.attention import Attention, available, register
        >>> @register("last_value", "the value of the token itself")
        ... class LastValue(Attention):
        ...     def mix(self, q, k, v, x):
        ...         return v
        >>> "last_value" in available()
        True
    """
    check_name(name)
    if not isinstance(idea, str) or not idea.strip():
        raise SetupError(f"attention '{name}' needs an idea for the table: @register('{name}', 'what it does')")

    def add(cls: type[Attention]) -> type[Attention]:
        _check_class(name, cls, defaults)
        _registry[name] = Entry(cls, idea, defaults)
        return cls

    return add


def check_name(name: object) -> None:
    """SetupError unless an attention, and so its config, can have this name."""
    if not isinstance(name, str):
        raise SetupError(f"@register needs a name and an idea: write @register('name', 'what it does'), got {name!r}")
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        rule = "lower-case letters, digits and _, beginning with a letter, as in 'my_kernel'"
        raise SetupError(f"'{name}' cannot name an attention: write {rule}")
    if name in YAML_WORDS:
        raise SetupError(f"'{name}' cannot name an attention: it is a word of YAML; write 'my_{name}', for example")


def _check_class(name: str, cls: object, defaults: dict[str, object]) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Attention)):
        what = getattr(cls, "__name__", repr(cls))
        way = f"write class {what}(Attention), with Attention from fourierformer.attention"
        raise SetupError(f"attention '{name}' must be a subclass of Attention: {way}")
    for ability in ("causal_ok", "full_ok", "cross_ok", "padding_ok", "qk_norm_ok", "rotary_ok"):
        if (verdict := getattr(cls, ability)) is not True and not (isinstance(verdict, str) and verdict):
            way = f'write the reason in its place, {ability} = "it ..."'
            raise SetupError(f"attention '{name}': {ability} must be True or a reason, got {verdict!r}: {way}")
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    positional = [p.name for p in parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    if positional:
        way = f"write __init__(self, geometry, *, {positional[0]}, ...)"
        raise SetupError(f"attention '{name}': the knob '{positional[0]}' must be keyword-only: {way}")
    if several := [p for p in parameters if p.kind is p.VAR_KEYWORD]:
        raise SetupError(f"attention '{name}': name every knob in the place of **{several[0].name}")
    if bare := [p.name for p in parameters if p.default is p.empty]:
        raise SetupError(f"attention '{name}': the knob '{bare[0]}' needs a default, as in its yaml")
    before = _registry[name].cls if name in _registry else None
    # a class of the same name replaces its older version, when a notebook loads a file again
    if before and (before is cls or (before.__module__, before.__name__) != (cls.__module__, cls.__name__)):
        owner = f"{before.__module__}.{before.__name__}"
        raise SetupError(f"attention '{name}' is registered already, by {owner}: write another name")
    # of those here, which are imported when they are first used
    if (module := _modules().get(name, cls.__module__)) != cls.__module__:
        raise SetupError(f"attention '{name}' is registered already, by {module}: write another name")
    for knob in defaults:
        if knob not in (valid := _knobs(cls)):
            raise SetupError(f"@register('{name}', ..., {knob}=...): there is no such knob{did_you_mean(knob, valid)}")


def _entry(name: str) -> Entry:
    if name not in _registry and name in _modules():
        importlib.import_module(_modules()[name])
    elif name not in _registry and name in _of_packages():
        _import_of_package(name)
    if name not in _registry:
        _load_all()  # a module of a package may register other names than those of its entry points
    if name not in _registry:
        way_out = "Where it is another package's, install that here"
        raise SetupError(f"unknown attention '{name}'{did_you_mean(name, _registry)}. {way_out}")
    return _registry[name]


@cache
def _modules() -> dict[str, str]:
    """Name -> the module of mechanisms/ that registers it, read from the source to avoid imports of the others."""
    registration = re.compile(r"""^@(?:\w+\.)?register\(\s*["']([a-z0-9_]+)["']""", re.MULTILINE)
    sources = sorted((Path(__file__).parent / "mechanisms").glob("*.py"))
    return {
        name: f"{__name__}.mechanisms.{path.stem}"
        for path in sources
        for name in registration.findall(path.read_text(encoding="utf-8"))
    }


@cache
def _of_packages() -> dict[str, str]:
    """Name -> module, of the mechanisms of other installed packages. A config, which may be of somebody else, only has
    the name: no file but a package that the user has installed decides which code is imported."""
    return {entry.name: entry.module for entry in entry_points(group="fourierformer.attention")}


def _import_of_package(name: str) -> None:
    module = _of_packages()[name]
    try:
        importlib.import_module(module)
    except SetupError:  # of @register, which names the attention
        raise
    except Exception as error:
        way_out = f'python -c "import {module}" shows where'
        raise SetupError(
            f"attention '{name}' of an installed package: no import of {module} ({short(error)}): {way_out}"
        ) from None


def _load_all() -> None:
    """Import every file of mechanisms/ and of other packages, which registers its names."""
    for module in dict.fromkeys(_modules().values()):
        importlib.import_module(module)
    for name in _of_packages():
        _import_of_package(name)


def refusal(cls: type[Attention], causal: bool, grid: bool) -> str | None:
    """Why a mechanism cannot be causal, bidirectional or without a grid: 'cannot be causal: ...'."""
    verdict = cls.causal_ok if causal else cls.full_ok
    if verdict is not True:
        return f"cannot be {'causal' if causal else 'bidirectional'}: {verdict}"
    if cls.needs_grid and not grid:
        return "needs a two-dimensional grid of patches (vision only)"
    return None


def available(
    *, causal: bool | None = None, grid: bool = True, cross: bool = False, padding: bool = False
) -> list[str]:
    """Names of all mechanisms, or of those that can be causal / bidirectional, can attend to another sequence, can
    ignore padding. `build` also refuses knobs that exclude it."""
    _load_all()
    able = {n: e.cls for n, e in _registry.items() if causal is None or refusal(e.cls, causal, grid) is None}
    able = {n: c for n, c in able.items() if c.cross_ok is True or not cross}
    return sorted(n for n, c in able.items() if c.padding_ok is True or not padding)


def names() -> set[str]:
    """Names of all mechanisms, none of which is imported for it."""
    return {*_registry, *_modules(), *_of_packages()}


def mechanism(name: str) -> type[Attention]:
    return _entry(name).cls


def idea(name: str) -> str:
    return _entry(name).idea


def knobs(name: str) -> dict[str, inspect.Parameter]:
    """The keyword-only arguments of a mechanism with their defaults under this name."""
    entry = _entry(name)
    return {n: p.replace(default=entry.defaults.get(n, p.default)) for n, p in _knobs(entry.cls).items()}


def _knobs(cls: type[Attention]) -> dict[str, inspect.Parameter]:
    try:  # eval_str: `from __future__ import annotations` makes a text of a type
        parameters = inspect.signature(cls, eval_str=True).parameters.values()
    except NameError as error:  # imported where only a type checker sees it
        raise SetupError(f"{cls.__name__}: the types of its knobs cannot be read ({error}): import them") from None
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def build(name: str, geometry: Geometry, **values) -> Attention:
    """Build the mechanism `name` for this geometry, or raise a SetupError with the reason and the possible mechanisms.

    Examples:
        >>> import torch
        >>> from fourierformer.attention import Geometry, build
        >>> layer = build("fourier", Geometry(dim=32, heads=4, length=10, causal=True), eps=0.0)
        >>> layer(torch.randn(2, 10, 32)).shape
        torch.Size([2, 10, 32])
    """
    entry, grid = _entry(name), geometry.grid is not None
    if reason := refusal(entry.cls, geometry.causal, grid):
        able = len(available(causal=geometry.causal, grid=grid))
        raise SetupError(f"attention '{name}' {reason}. {able} others can, for example softmax (docs/attention.md)")
    valid = knobs(name)
    for key in values:
        if key not in valid:
            raise SetupError(f"attention '{name}' has no knob '{key}'{did_you_mean(key, valid)}")
        if not has_type(values[key], hint := valid[key].annotation):
            raise SetupError(f"attention '{name}': {key}={values[key]!r}: expected {type_text(hint)}")
    layer = entry.cls(geometry, **{**entry.defaults, **values})
    refused = None
    if layer.qk_norm and layer.qk_norm_ok is not True:
        refused = f"cannot normalise queries and keys: {layer.qk_norm_ok}. Set model.qk_norm=none"
    elif geometry.rotary_base is not None and layer.rotary_ok is not True:
        refused = f"cannot have rotary positions: {layer.rotary_ok}. Set model.position=sinusoid"
    if refused:
        raise SetupError(f"attention '{name}' {refused}")
    return layer
