"""configs/data and TextData have the same keys, and the script reads them."""

import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from fourierformer.data.text.corpus import TextData
from fourierformer.errors import SetupError
from tests.helpers.command_line import REPOSITORY

NAMES = [
    *("builtin_bytes", "builtin_pixels", "builtin_text", "cifar10_pixels", "enwik8"),
    *("text", "wikitext103", "wikitext2", "wikitext2_bpe", "wikitext2_bytes"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_config_has_exactly_the_keys_of_its_class(name):
    path = REPOSITORY / "configs" / "data" / f"{name}.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(values) == {field.name for field in fields(TextData)}
    assert values["name"] == name
    assert path.read_text(encoding="utf-8").startswith("# ")
    TextData(**values)


def test_the_papers_cutoffs():
    values = yaml.safe_load((REPOSITORY / "configs/data/wikitext103.yaml").read_text())
    assert values["cutoffs"] == [20_000, 40_000, 200_000]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"unit": "char"}, "data.unit=char is unknown"),
        ({"source": "web"}, "data.source=web is unknown"),
        ({"root": None}, "needs a folder with its files: data.root="),
        ({"unit": "byte", "vocabulary_size": 10}, "bytes always have 256"),
        ({"vocabulary_size": 2}, "at least 3"),
        ({"byte_splits": [1, 2, 3]}, "data.unit=byte"),
        ({"unit": "byte", "byte_splits": [1, 2]}, "three lengths"),
        ({"expect": {"trian": 1}}, "unknown keys"),
    ],
)
def test_impossible_descriptions_are_named(wrong, message):
    with pytest.raises(SetupError, match=message):
        TextData(**{"name": "x", "root": "data/x"} | wrong)


def script(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(REPOSITORY / "scripts/prepare_data.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


def test_the_script_prepares_and_reports(real_data, tmp_path):
    result = script("wikitext2", "--root", str(real_data / "wikitext-2"), "--cache", str(tmp_path))
    assert result.returncode == 0, result.stderr
    for part in ("33,278 words", "2,088,628 tokens", "M tokens/s", "peak memory"):
        assert part in result.stdout


def test_the_script_lists_and_ends_bad_input_in_one_line(tmp_path):
    assert [line.split()[0] for line in script("--list").stdout.splitlines()] == NAMES
    wrong = script("wikitxt2")
    assert wrong.returncode == 2
    assert wrong.stderr.strip().endswith("no text data set is called 'wikitxt2' (did you mean 'wikitext2'?)")
    missing = script("wikitext2", "--root", str(tmp_path), "--cache", str(tmp_path / "cache"))
    assert missing.returncode == 2
    assert "(a) put" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_enwik8_is_cut_90_5_5():
    values = yaml.safe_load((REPOSITORY / "configs/data/enwik8.yaml").read_text())
    assert values["byte_splits"] == [90_000_000, 5_000_000, 5_000_000]
    assert sum(values["byte_splits"]) == 100_000_000
