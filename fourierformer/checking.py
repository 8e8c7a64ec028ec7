"""Check a composed config: every key is known and its value has the right type.

Hydra accepts `+typo=1` and values of any type silently. OmegaConf is imported where a composed config is read.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import TYPE_CHECKING

from fourierformer.errors import SetupError, did_you_mean, first_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Nearly the smallest and the largest float32, in which models and optimizers compute
SMALLEST, LARGEST = 1.2e-38, 3.4e38
# what others, or papers of vision and of language, call one thing
SYNONYMS = {"layers": "depth", "depth": "layers", "learning_rate": "lr"}
Schema = dict[str, dict[str, object]]  # section -> key -> type annotation; section "" is the top level


def check_config(values: dict, schema: Schema) -> None:
    """SetupError for the first key or value that does not fit the schema."""
    sections = {name for name in schema if name}
    for key in values:
        if key not in sections and key not in schema[""]:
            raise SetupError(f"unknown key '{key}'{did_you_mean(key, sections | set(schema['']))}")
    check_section("", {k: v for k, v in values.items() if k not in sections}, schema[""])
    for section in sorted(sections):
        if not isinstance(values.get(section), dict):
            raise SetupError(f"'{section}' must be a config group, got {values.get(section)!r}")
        check_section(f"{section}.", values[section], schema[section])


def plain_values(config: DictConfig) -> dict:
    """Resolve a command's config into plain values. SetupError for a value that is missing, or that cannot be resolved.

    A stored config has plain values already and must not come here: a resolver such as ${oc.env:TOKEN} in a file of
    somebody else would put a secret of this machine into results and exports.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            way_out = f"give one, e.g. {missing[0]}=1, or choose an experiment: experiment=NAME"
            raise SetupError(f"no value for {', '.join(missing)}: {way_out}")
        values = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
        assert isinstance(values, dict)  # of a DictConfig
    except OmegaConfBaseException as error:
        raise SetupError(f"cannot resolve '{error.full_key}': {first_line(error)}") from None
    # `scale` chooses the experiments of a sweep (configs/scale) and has no part in a run
    return {str(k): v for k, v in values.items() if k != "scale"}


def check_section(prefix: str, values: dict, expected: dict[str, object]) -> None:
    """SetupError unless these are the keys of a section, with values of their types."""
    for key, value in values.items():
        if key not in expected:
            known = [SYNONYMS[key]] if SYNONYMS.get(key) in expected else expected
            raise SetupError(f"unknown key '{prefix}{key}'{did_you_mean(SYNONYMS.get(key, str(key)), known, prefix)}")
        if not has_type(value, expected[key]):
            whole = isinstance(value, float) and value.is_integer() and has_type(int(value), expected[key])
            way_out = f". Write {prefix}{key}={int(value)}" if whole else ""
            raise SetupError(f"{prefix}{key}={value!r}: expected {type_text(expected[key])}{way_out}")
    absent = sorted(set(expected) - set(values))
    if absent:
        raise SetupError(f"no value for {prefix}{absent[0]}: give one on the command line, or in the group's yaml")


def has_type(value: object, hint: typing.Any) -> bool:
    """Whether a value is of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, a) for a in arguments)
    if origin is list:
        return isinstance(value, list) and all(has_type(v, arguments[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(has_type(v, arguments[1]) for v in value.values())
    if hint in (None, type(None)):
        return value is None
    if hint in (inspect.Parameter.empty, typing.Any):
        return True
    if hint is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return value == 0 or SMALLEST <= abs(value) <= LARGEST  # False for NaN
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, origin or hint)


def type_text(hint: typing.Any) -> str:
    """An annotation in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(f"'{a}'" for a in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(a) for a in arguments)
    if origin is list:
        numbers = {float: ("0.1", "0.2"), int: ("1", "2")}
        examples = typing.get_args(arguments[0]) or numbers.get(arguments[0], ("a", "b"))
        return f"a list of {type_text(arguments[0])}, e.g. [{','.join(map(str, examples[:2]))}]"
    if origin is dict:
        return "a mapping"
    plain = {int: "a whole number", float: "a finite number that float32 holds", str: "text", bool: "true or false"}
    return (plain | {type(None): "null"}).get(hint, str(hint))
