"""Registering a mechanism: mistakes are refused in one line, and what is left out is stated so."""

import pytest

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.results.documents import mechanism_table


class Fresh(attention.Attention):
    def __init__(self, geometry: Geometry, *, window: int = 32):
        super().__init__(geometry)


class Positional(attention.Attention):
    def __init__(self, geometry: Geometry, window: int = 32):
        super().__init__(geometry)


class Collecting(attention.Attention):
    def __init__(self, geometry: Geometry, *, window: int = 32, **others):
        super().__init__(geometry)


class WithoutDefault(attention.Attention):
    def __init__(self, geometry: Geometry, *, window: int):
        super().__init__(geometry)


class WithTextTypes(attention.Attention):
    def __init__(self, geometry: "Geometry", *, window: "int" = 32):  # as `from __future__ import annotations` has them
        super().__init__(geometry)


class WithUnknownType(attention.Attention):
    def __init__(self, geometry: "NoSuchName", *, window: int = 32):  # noqa: F821
        super().__init__(geometry)


@pytest.fixture
def registry(monkeypatch):
    """A copy, so that nothing stays registered."""
    attention.available()
    monkeypatch.setattr(attention, "_registry", dict(attention._registry))
    return attention._registry


@pytest.mark.parametrize(
    ("arguments", "defaults", "cls", "message"),
    [
        (("fresh",), {}, Fresh, "needs an idea .* @register\\('fresh', 'what it does'\\)"),
        (("fresh", "  "), {}, Fresh, "needs an idea"),
        (("fresh", 3), {}, Fresh, "needs an idea"),
        ((Fresh,), {}, Fresh, "write @register\\('name', 'what it does'\\)"),
        (("Fresh", "idea"), {}, Fresh, "lower-case letters.*'my_kernel'"),
        (("my kernel", "idea"), {}, Fresh, "lower-case letters"),
        (("2nd", "idea"), {}, Fresh, "lower-case letters"),
        (("null", "idea"), {}, Fresh, "word of YAML; write 'my_null'"),
        (
            ("softmax", "idea"),
            {},
            Fresh,
            "registered already, by fourierformer.attention.mechanisms.softmax.Softmax: .*another name",
        ),
        (("fresh", "idea"), {}, dict, "write class dict\\(Attention\\), with Attention from fourierformer.attention"),
        (("fresh", "idea"), {}, len, "write class len\\(Attention\\)"),
        (
            ("fresh", "idea"),
            {},
            type("Never", (Fresh,), {"cross_ok": False}),
            "cross_ok must be True or a reason, got Fal",
        ),
        (
            ("fresh", "idea"),
            {},
            Positional,
            "'window' must be keyword-only: write __init__\\(self, geometry, \\*, window, ",
        ),
        (("fresh", "idea"), {}, WithoutDefault, "the knob 'window' needs a default"),
        (("fresh", "idea"), {}, Collecting, "name every knob in the place of \\*\\*others"),
        (("fresh", "idea"), {"windw": 3}, Fresh, "no such knob \\(did you mean 'window'\\?\\)"),
    ],
)
def test_a_mistake_in_registering_ends_there_in_one_line(arguments, defaults, cls, message, registry):
    before = dict(registry)
    with pytest.raises(SetupError, match=message) as error:
        attention.register(*arguments, **defaults)(cls)
    assert "\n" not in str(error.value)
    assert registry == before


def test_registering_twice_is_refused_and_loading_a_file_again_is_not(registry):
    attention.register("fresh", "idea", window=3)(Fresh)
    assert attention.knobs("fresh")["window"].default == 3
    with pytest.raises(SetupError, match="registered already"):
        attention.register("fresh", "another idea")(Fresh)
    again = type("Fresh", (attention.Attention,), {"__module__": Fresh.__module__})
    attention.register("fresh", "a better idea")(again)
    assert attention.mechanism("fresh") is again


def test_a_table_needs_neither_cost_nor_state_nor_source(registry):
    attention.register("fresh", "idea")(Fresh)
    (row,) = [line for line in mechanism_table().splitlines() if line.startswith("| `fresh` |")]
    assert row.count("not stated") == 3


def test_the_sources_name_every_mechanism():
    """`build` finds the file of a name by reading sources; a registration that it cannot read would be missed."""
    attention.available()
    own = {name for name, entry in attention._registry.items() if entry.cls.__module__.startswith("fourierformer.")}
    assert own == set(attention._modules())


def test_a_name_of_this_package_is_taken_before_its_file_is_imported(monkeypatch):
    monkeypatch.setattr(attention, "_registry", {})
    with pytest.raises(SetupError, match=r"registered already, by fourierformer.attention.mechanisms.softmax: write"):
        attention.register("softmax", "idea")(Fresh)


def test_types_that_are_texts_are_those_types(registry):
    attention.register("fresh", "idea")(WithTextTypes)
    geometry = Geometry(dim=8, heads=2, length=9, causal=True)
    assert isinstance(attention.build("fresh", geometry, window=3), WithTextTypes)
    with pytest.raises(SetupError, match="window='wide': expected a whole number"):
        attention.build("fresh", geometry, window="wide")
    attention.register("unknown_type", "idea")(WithUnknownType)
    with pytest.raises(SetupError, match=r"types of its knobs cannot be read .name 'NoSuchName' is not defined"):
        attention.knobs("unknown_type")
