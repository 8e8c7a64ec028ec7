"""Texts of files reach a terminal with control characters as text, and by one function only."""

import ast
import io

import pytest

from fourierformer.files import write_json
from fourierformer.printing import echo, visible
from fourierformer.results.formats import Table, text_of
from fourierformer.runs.console_io import print_error
from fourierformer.tracking.console import ConsoleTracker
from scripts.sweep_status import show
from tests.helpers.command_line import REPOSITORY

TITLE = "\x1b]0;your window\x07"
CLEAR = "\x1b[2J"
# what else writes to a terminal: rich's tables, which were given `visible` texts, a handler of signals, and programs
# that print facts of this machine and this repository alone
PRINTERS = {
    "fourierformer/printing.py",
    "fourierformer/runs/sweep.py",
    "scripts/make_tables.py",
    "scripts/doctor.py",
    "scripts/list_messages.py",
}


def test_control_characters_become_text():
    assert visible(f"{TITLE}{CLEAR}\r\x7f\x9b31m\u202e") == r"\x1b]0;your window\x07\x1b[2J\r\x7f\x9b31m\u202e"
    assert (
        visible("ordinary text, π ± 2 %,\n\tsecond line — 'ö' 漢字")
        == "ordinary text, π ± 2 %,\n\tsecond line — 'ö' 漢字"
    )
    assert visible("a\u200eb\u200fc\u061cd") == r"a\u200eb\u200fc\u061cd"  # marks of direction
    assert visible(7) == "7"
    assert visible(b"a\xff".decode(errors="surrogateescape")) == r"a\udcff"  # a file's name that is no UTF-8


@pytest.mark.parametrize("code", [*range(32), 127, *range(128, 160)])
def test_no_control_character_but_tab_and_line_end_is_printed(code, capsys):
    echo("a", chr(code), end="")
    printed = capsys.readouterr().out
    assert (chr(code) in printed[2:]) == (chr(code) in "\t\n")


def test_a_status_of_somebody_else_does_not_steer_the_terminal(tmp_path, capsys):
    run = tmp_path / "lm-softmax-s1-0a1b2c3d"
    run.mkdir()
    write_json(run / "status.json", {"state": "failed", "error": f"{TITLE}{CLEAR}all is well", "step": 1, "steps": 2})
    show([str(tmp_path)], for_programs=False)
    show([str(tmp_path)], for_programs=True)
    print_error(f"{CLEAR}all is well", 2)
    output = capsys.readouterr()
    assert r"\x1b]0;your window\x07\x1b[2Jall is well" in output.out
    assert "\x1b" not in output.out + output.err


def test_tables_and_progress_show_control_characters_as_text():
    table = Table(f"title {CLEAR}", [], ["attention", f"ppl{CLEAR}"], [[f"softmax{TITLE}", "1.0"]], notes=[CLEAR])
    page = text_of([table])
    assert "\x1b" not in page
    assert page.count(r"\x1b[2J") == 3
    assert r"softmax\x1b]0;your window\x07" in page
    stream = io.StringIO()
    ConsoleTracker(1, 1, "run", stream=stream).say(f"note: {CLEAR}")
    assert stream.getvalue() == "note: \\x1b[2J\n"


def test_nothing_else_prints():
    paths = [*(REPOSITORY / "fourierformer").rglob("*.py"), *(REPOSITORY / "scripts").glob("*.py")]
    found = set()
    for path in paths:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Name) and node.id == "print" for node in nodes):
            found.add(str(path.relative_to(REPOSITORY)))
    assert found == PRINTERS
