"""CSV files of measurements: they say where their numbers come from, and what is written is read back."""

import csv
import math
import sys

import pytest

from fourierformer.errors import SetupError
from fourierformer.files import read_csv, write_csv
from fourierformer.provenance import header
from tests.helpers.command_line import REPOSITORY


def test_a_file_says_where_its_numbers_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/attention.py", "--out", f"{tmp_path}/a.csv", "--quick"])
    path = tmp_path / "deeper" / "rows.csv"
    head = header("-m benchmarks.attention", ("torch", "no-such-package"), machine="an abacus")
    write_csv(path, [{"name": "a", "ms": 1.23456789, "steps": 7}], head)
    file = read_csv(path)
    assert file.comments[0] == "command: python -m benchmarks.attention --out a.csv --quick"
    assert [line.split(":")[0] for line in file.comments[1:]] == ["commit", "versions", "machine"]
    assert "no-such-package" not in file.comments[2]
    assert file.rows == [{"name": "a", "ms": "1.2346", "steps": "7"}]


def test_commas_and_line_breaks_come_back_and_what_is_no_number_is_empty(tmp_path):
    rows = [{"name": "a, b\n# c", "x": None}, {"name": "#", "x": math.nan}, {"name": "d", "x": math.inf}]
    write_csv(tmp_path / "rows.csv", rows, "# a comment\n")
    file = read_csv(tmp_path / "rows.csv")
    assert (file.comments, file.columns) == (["a comment"], ["name", "x"])
    assert [tuple(row.values()) for row in file.rows] == [("a, b\n# c", ""), ("#", ""), ("d", "inf")]


def test_a_cell_is_no_formula(tmp_path):
    names = ["=1+1", "@SUM(A1)", "'=a", "+1+1", "-1+cmd|'/C calc'!A0", "\t=1", "-", "'quoted'", "-0.5", "+2e-3", "a=b"]
    write_csv(tmp_path / "rows.csv", [{"name": name} for name in names])
    cells = (tmp_path / "rows.csv").read_text().splitlines()[1:]
    signs = ["'+1+1", "'-1+cmd|'/C calc'!A0", "'\t=1", "-"]
    assert cells == ["'=1+1", "'@SUM(A1)", "''=a", *signs, "'quoted'", "-0.5", "+2e-3", "a=b"]
    assert [row["name"] for row in read_csv(tmp_path / "rows.csv").rows] == names


def test_the_name_of_a_column_is_no_formula(tmp_path):
    write_csv(tmp_path / "x.csv", [{"run": "a", '=HYPERLINK("x")': 1}])
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == """run,"'=HYPERLINK(""x"")\""""
    assert read_csv(tmp_path / "x.csv").columns == ["run", '=HYPERLINK("x")']
    assert read_csv(tmp_path / "x.csv").rows == [{"run": "a", '=HYPERLINK("x")': "1"}]


def test_a_carriage_return_begins_neither_a_formula_nor_a_line(tmp_path):
    write_csv(tmp_path / "rows.csv", [{"name": "\r=1", "other": "a\r=2"}])
    assert (tmp_path / "rows.csv").read_bytes() == rb"name,other" + b"\n" + rb"\r=1,a\r=2" + b"\n"


def test_committed_files_are_written_as_they_are(tmp_path):
    """A quote before what may be a formula changes no cell of them."""
    for path in [*REPOSITORY.glob("results/**/*.csv"), *REPOSITORY.glob("studies/**/*.csv")]:
        file = read_csv(path)
        with open(path, newline="", encoding="utf-8") as text:
            raw = list(csv.DictReader(line for line in text if not line.startswith("#")))
        assert file.rows == raw, path
        write_csv(tmp_path / "rows.csv", file.rows, columns=file.columns)
        with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as text:
            assert list(csv.DictReader(text)) == raw, path


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"file/rows\.csv: .*Choose a place"):
        write_csv(tmp_path / "file" / "rows.csv", [{"name": "a"}])
