"""scripts/make_tables.py: tables in three forms, runs into files, refusals said, the documents written."""

import re
import sys

import pytest

from fourierformer.results.documents import DOCUMENTS
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

sys.path.insert(0, str(REPOSITORY / "scripts"))
import make_tables


@pytest.fixture
def call(monkeypatch, capsys):
    """The script in this process: (exit code, stdout, stderr)."""

    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["make_tables.py", *map(str, arguments)])
        code = 0
        try:
            with make_tables.exit_on_user_error():
                make_tables.main(make_tables.parse())
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def runs(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / "runs", "softmax", seed, 60.0 + seed)
        write_run(tmp_path / "runs", "fourier", seed, 58.0 + seed**2)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("form", "sign"),
    [("text", " attention  n  parameters"), ("markdown", "| attention | n |"), ("latex", r"\begin{tabular}")],
)
def test_three_forms_with_intervals_and_significance(call, runs, form, sign):
    code, out, _ = call(runs, "--format", form)
    assert code == 0
    assert sign in out
    assert "95 % interval" in out.replace(r"\%", "%")
    assert "fourier - softmax:" in out


def test_the_papers_tables_do_not_choose_settings(call, runs):
    """Their rows are of the paper's settings alone; shown without a word they would be taken for each one's best."""
    code, out, error = call(runs, "--paper", "--best-by", "valid")
    assert (code, out) == (2, "")
    assert error == "error: --paper and --best-by valid are two kinds of tables: leave one out\n"


@pytest.mark.parametrize("option", ["--include-dirty", "--include-debug"])
def test_options_of_collecting_are_refused_without_it(call, runs, option):
    code, out, error = call(runs, option)
    assert (code, out) == (2, "")
    assert "are for --collect" in error


def test_markdown_flag_is_the_same_as_the_format(call, runs):
    assert call(runs, "--markdown") == call(runs, "--format", "markdown")


def test_one_seed_prints_the_comparison_alone(call, tmp_path):
    write_run(tmp_path / "runs", "softmax", 1)
    write_run(tmp_path / "runs", "fourier", 1)
    code, out, _ = call(tmp_path / "runs")
    assert code == 0
    assert "interval" not in out
    assert "n = 1: one seed supports no claim" in out


def test_the_papers_tables_need_no_run(call, tmp_path):
    (tmp_path / "runs").mkdir()
    code, out, _ = call(tmp_path / "runs", "--paper", "--markdown")
    assert code == 0
    assert [int(number) for number in re.findall(r"^\*\*Table (\d)", out, flags=re.M)] == [1, 2, 3]
    assert "| lm_medium | fourier | test ppl sliding | 0 | - | - | - | 28.01 | - | derived |" in out


def test_collected_runs_are_counted_and_refused_ones_named(call, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(make_tables, "MEASURED", tmp_path / "measured")
    write_run(runs, "gaussian", 1, state="failed", error="out of memory")
    write_run(runs, "gaussian", 2, changes={"debug": True})
    code, out, err = call(runs, "--collect", "first")
    assert code == 0
    assert "first.csv: 4 runs (4 collected, 2 refused, 0 of earlier kept)" in out
    failed, debug = err.splitlines()
    assert "refused: " in failed
    assert "-gaussian-s1-" in failed
    assert "failed; out of memory" in failed
    assert "-gaussian-s2-" in debug
    assert "a debug run" in debug
    code, out, err = call(runs, "--collect", "first", "--include-debug")
    assert "5 runs (5 collected, 1 refused, 0 of earlier kept)" in out
    # a table from the file alone
    code, out, _ = call(tmp_path / "measured" / "first.csv")
    assert code == 0
    assert "fourier - softmax:" in out


def test_nothing_is_written_when_nothing_may_be_collected(call, tmp_path, monkeypatch):
    monkeypatch.setattr(make_tables, "MEASURED", tmp_path / "measured")
    write_run(tmp_path / "runs", changes={"debug": True})
    code, _, err = call(tmp_path / "runs", "--collect", "first")
    assert code == 2
    assert "none of 1 runs may be collected" in err
    assert not (tmp_path / "measured").exists()


def test_the_same_run_twice_is_collected_once_and_said(call, tmp_path, monkeypatch):
    monkeypatch.setattr(make_tables, "MEASURED", tmp_path / "measured")
    for root in ("a", "b"):
        write_run(tmp_path / root, "softmax", 1)
    code, out, err = call(tmp_path / "a", tmp_path / "b", "--collect", "both")
    assert code == 0
    assert "1 runs (1 collected, 1 refused" in out
    assert f"the same run as {tmp_path / 'a'}" in err


@pytest.mark.parametrize("name", ["../x", "a/b", "nowhere/x.csv", ""])
def test_a_name_is_a_name_not_a_place(call, runs, name):
    code, _, err = call(runs, "--collect", name)
    assert code == 2
    assert len(err.splitlines()) == 1


@pytest.mark.full("draws the galleries twice")
def test_documents_are_rewritten_between_their_markers_only(call, tmp_path, monkeypatch):
    monkeypatch.setattr(make_tables, "REPOSITORY", tmp_path)
    monkeypatch.setattr(make_tables, "SHARE", tmp_path)
    code, _, err = call("--docs")
    assert (code, "no such file" in err) == (2, True)
    (tmp_path / "docs").mkdir()
    for name in DOCUMENTS:
        (tmp_path / name).write_text("# Title\n")
    code, _, err = call("--docs")
    assert (code, ":begin" in err) == (2, True)
    for name, parts in DOCUMENTS.items():
        marked = (f"<!-- {part}:begin -->\nold text\n<!-- {part}:end -->\n" for part in parts)
        (tmp_path / name).write_text("# Title\n" + "".join(marked) + "after\n")
    assert call("--docs")[0] == 0
    texts = {name: (tmp_path / name).read_text() for name in DOCUMENTS}
    for text in texts.values():
        assert text.startswith("# Title\n<!-- ")
        assert text.endswith(":end -->\nafter\n")
        assert "old text" not in text
    pictures = {path.name for path in (tmp_path / "docs/pictures").iterdir()}
    assert pictures == {"patterns.svg", "patterns.png"}
    assert call("--docs")[0] == 0
    assert {name: (tmp_path / name).read_text() for name in DOCUMENTS} == texts


def test_a_file_of_another_kind_is_called_so(call):
    code, _, err = call(REPOSITORY / "README.md")
    assert (code, err) == (2, f"error: {REPOSITORY / 'README.md'}: neither a folder of runs nor a .csv file\n")


def test_the_papers_tables_count_committed_runs_once(call, runs, tmp_path, monkeypatch):
    """Whether they are still in runs/, in one file, or in two."""
    monkeypatch.setattr("fourierformer.results.measured.MEASURED", tmp_path / "measured")
    monkeypatch.setattr(make_tables, "MEASURED", tmp_path / "measured")
    for name in ("one", "two"):
        assert call(runs, "--collect", name)[0] == 0
    monkeypatch.chdir(tmp_path)
    both = make_tables.gather(make_tables.default_sources(paper=True))
    assert len(both) == 4
    runs.rename(tmp_path / "elsewhere")
    assert len(make_tables.gather(make_tables.default_sources(paper=True))) == 4
    assert call("--paper")[0] == 0
    code, _, err = call()
    assert (code, "runs: no such directory" in err) == (2, True)


def test_every_committed_run_can_stand_beside_the_papers_numbers(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # no runs/ here
    code, out, err = call("--paper")
    assert (code, err) == (0, "")
    assert all(f"Table {number}: " in out for number in (1, 2, 3))
