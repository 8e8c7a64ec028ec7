"""A text small enough to check by eye."""

import pytest

from fourierformer.data.text.corpus import TextData

LINES = {
    "train": " = Title = \n \nthe cat sat on the <unk> mat .\nthe dog sat\n",
    "valid": "the cat\n",
    "test": "a <unk> dog\n\n",
}


@pytest.fixture
def lines() -> dict[str, str]:
    return LINES


@pytest.fixture
def small(tmp_path) -> TextData:
    root = tmp_path / "root"
    root.mkdir()
    for split, text in LINES.items():
        (root / f"wiki.{split}.tokens").write_text(text, encoding="utf-8")
    return TextData(name="small", root=str(root), cache=str(tmp_path / "cache"))
