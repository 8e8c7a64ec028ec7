"""LaTeX: every table is well formed, nothing in it is markup by accident, the caption says scale and protocol."""

import math
import re

import pytest

from fourierformer.results import collect, comparison, tables
from fourierformer.results.formats import Table, in_latex, latex_of
from fourierformer.results.intervals import interval_tables, paper_tables
from tests.helpers.synthetic_runs import evaluation, write_run, write_vision_run


@pytest.fixture
def rows(tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path, "softmax", seed, 61.0 + seed)
        write_vision_run(tmp_path, "fourier_head", seed, 93 + seed / 7, ema=True)
    write_run(tmp_path, "fourier", 1, 58.3, changes={"results": {"test": {"segment": evaluation(58.3)}}})
    write_run(tmp_path, "gaussian", 1, changes={"results": {"test": {"segment": evaluation(58.3) | {"ppl": math.inf}}}})
    return comparison(collect(tmp_path))


def bodies(text: str) -> list[tuple[str, list[str]]]:
    """(column letters, lines) of every outer tabular."""
    found = re.findall(r"^\\begin\{tabular\}\{([lr]+)\}\n(.*?)^\\end\{tabular\}", text, flags=re.S | re.M)
    return [(columns, [line for line in body.splitlines() if line.endswith(r"\\")]) for columns, body in found]


def test_every_line_has_a_cell_per_column(rows):
    shown = [*tables(rows), *interval_tables(rows), *paper_tables(rows)]
    text = latex_of(shown)
    assert len(bodies(text)) == len(shown)
    for columns, body in bodies(text):
        for line in body:
            assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1


def test_what_begins_also_ends_and_braces_pair(rows):
    text = latex_of(tables(rows))
    assert re.findall(r"\\begin\{(\w+)\}", text).count("tabular") == text.count(r"\end{tabular}")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert text.count("$") % 2 == 0


def test_the_caption_says_scale_and_protocol(rows):
    first = re.findall(r"\\caption\{(.*)\}", latex_of(tables(rows)))[0]
    assert first.startswith("quickstart, lm\\_tiny, data builtin\\_text. scale: lm\\_tiny on builtin\\_text, 600 steps")
    assert "test, sliding: context 64, stride 1, 21,000 tokens scored" in first


def test_best_is_bold_missing_is_a_dash_and_infinite_a_word(rows):
    text = latex_of(tables(rows))
    assert r"\textbf{58.30}" in text
    assert " & -- & " in text
    assert "infinite" in text
    assert r"64.00 $\pm$" not in text  # 62, 63 and 64: the mean is 63
    assert r"63.00 $\pm$ 1.00" in text


def test_a_sign_is_a_minus_and_a_hyphen_stays_one():
    body = [["top-1", "-0.45"], ["-", "1e-06"]]
    text = latex_of([Table("a table", [], ["evaluation", "ours - paper"], body, best={(0, 1)})])
    assert r"top-1 & \textbf{$-$0.45} \\" in text
    assert r"-- & 1e-06 \\" in text


@pytest.mark.parametrize("char", list("&%$#_{}"))
def test_special_characters_are_escaped(char):
    assert in_latex(f"a{char}b") == f"a\\{char}b"


def test_a_name_cannot_become_markup(tmp_path):
    write_run(tmp_path, r"[a]*\input{x}|^~", 1)
    text = latex_of(tables(comparison(collect(tmp_path))))
    assert r"{[}a{]}{*}\textbackslash{}input\{x\}$|$\textasciicircum{}\textasciitilde{}" in text
