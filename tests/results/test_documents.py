"""The generated parts of README and docs/: numbers are those of the committed files, and every attention has a row."""

import re

import pytest

from fourierformer import attention
from fourierformer.errors import SetupError
from fourierformer.files import write_csv
from fourierformer.results import collect
from fourierformer.results.documents import (
    DOCUMENTS,
    NOTHING,
    measured_files,
    mechanism_table,
    outside_table,
    quickstart,
    quoted,
    reference_table,
    updated,
)
from fourierformer.results.faults import BAD, GOOD, fault_table
from fourierformer.results.measured import write_measured
from tests.helpers.command_line import REPOSITORY
from tests.helpers.synthetic_runs import write_run

BEGIN, END = "<!-- files:begin -->", "<!-- files:end -->"
MARKED = f"before\n{BEGIN}\n{END}\nafter\n"
PARTS = DOCUMENTS["docs/measurements.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_committed_document_is_stale(name):
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    assert updated(text, DOCUMENTS[name]) == text, "run `make docs`"


def test_every_marker_in_a_document_is_known():
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        found = re.findall(r"<!-- (\w+):begin -->", path.read_text(encoding="utf-8"))
        assert found == list(DOCUMENTS.get(path.relative_to(REPOSITORY).as_posix(), {}))


def test_the_table_of_make_train_is_what_it_prints(tmp_path):
    write_run(tmp_path / "runs", "softmax", 1, 60.0)
    write_measured(collect(tmp_path / "runs"), tmp_path / "quickstart.csv")
    first, *lines, last = quickstart(tmp_path).splitlines()
    assert (first, last) == ("```text", "```")
    assert any(re.match(r" ?softmax +1 ", line) for line in lines)


def test_the_reference_lists_what_the_document_names():
    text = "## A heading\n<!-- ::: fourierformer.available_attentions -->\n"
    row = reference_table(text).splitlines()[-1]
    link = "[`fourierformer.available_attentions`](../fourierformer/__init__.py)"
    assert row.startswith(f"| {link} | Names of every attention")
    with pytest.raises(SetupError, match=r"fourierformer\.nothing"):
        reference_table("<!-- ::: fourierformer.nothing -->")


def test_a_line_per_file_with_its_content_commit_and_program(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / "runs", "softmax", seed, 60.0 + seed)
        write_run(tmp_path / "runs", "fourier", seed, 58.0 + seed**2)
    write_measured(collect(tmp_path / "runs"), tmp_path / "table1_quick.csv")
    command = "LD_PRELOAD=$PWD/mkl.so python -m benchmarks.kernel --x 1"  # its environment is not the program
    (tmp_path / "kernel_cpu.csv").write_text(f"# command: {command}\n# commit: abc\nshape,ms\na,1\n")
    kernel, runs = measured_files(tmp_path).splitlines()[2:]
    assert "| 1 | shape, ms, ... | abc | `python -m benchmarks.kernel` |" in kernel
    assert "| 4 | runs of lm_tiny on builtin_text; 2 attentions | 0123abcd |" in runs


def test_a_changed_number_makes_it_stale(tmp_path):
    write_run(tmp_path / "runs", "softmax", 1, 60.0)
    write_measured(collect(tmp_path / "runs"), tmp_path / "quick.csv")
    text = updated(MARKED, PARTS, tmp_path)
    assert updated(text, PARTS, tmp_path) == text
    write_run(tmp_path / "runs", "softmax", 2, 60.0)
    write_measured(collect(tmp_path / "runs"), tmp_path / "quick.csv")
    assert updated(text, PARTS, tmp_path) != text


def test_without_files_it_says_so(tmp_path):
    assert measured_files(tmp_path) == measured_files(tmp_path / "absent") == NOTHING


def test_a_part_of_a_study_is_quoted_word_for_word():
    study = (REPOSITORY / "studies/real_data/README.md").read_text(encoding="utf-8")
    assert quoted("real_data", "headline") in study
    with pytest.raises(SetupError, match="has no part nothing: run `make studies`"):
        quoted("real_data", "nothing")


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_missing_or_doubled_markers_are_an_error(text):
    with pytest.raises(SetupError, match="files:begin"):
        updated(text, {"files": lambda *_: "new"})


def test_every_attention_has_a_row_with_what_it_costs():
    lines = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in mechanism_table().splitlines()]
    lines = [[cell.strip() for cell in line] for line in lines]  # \| is part of a cell, as in |q - k|
    rows = {cells[0].strip("`"): cells[1:] for cells in lines[2:] if len(cells) == len(lines[0])}
    assert list(rows) == attention.available()
    for name, cells in rows.items():
        assert all(cells), name
        assert re.search(r"(19|20)\d\d|FourierFormer|ours", cells[-1]), name
    # one radius per layer, per head, per coordinate of a head: 8 heads of 16
    assert [rows[name][4] for name in ("softmax", "fourier", "fourier_head", "fourier_vector")] == [
        "0",
        "+1",
        "+8",
        "+16",
    ]


def test_suites_of_others_have_a_line_each_with_their_reasons(tmp_path):
    assert outside_table(tmp_path) == NOTHING
    numbers = {"run": "6", "passed": "6", "failed": "0", "skipped": "2"}
    rows = [{"suite": "theirs", "shows": "a law", "version": "1.2", **numbers, "reasons": "no GPU (2)"}]
    write_csv(tmp_path / "outside.csv", rows, "# commit: 0123abc\n")
    table = outside_table(tmp_path)
    assert "| theirs | a law | 1.2 | 6 | 6 | 2 |" in table
    assert "- theirs: no GPU (2)." in table
    assert table.endswith("From `results/measured/outside.csv`: commit: 0123abc.")


def test_faults_are_summed_by_kind_and_stand_with_their_origin(tmp_path):
    assert "No fault injection" in fault_table(tmp_path)
    results = dict.fromkeys((*GOOD, *BAD), 0) | {"forked": 2, "started": 1}
    rows = [
        {"fault": "killed", "target": "language", "trials": 600, **results, "same result": 600, "seconds": 9.5},
        {"fault": "killed", "target": "vision", "trials": 500, **results, "same result": 499, "hang": 1, "seconds": 9},
        {"fault": "disk", "target": "language", "trials": 7, **results, "same result": 3, "traceback": 4, "seconds": 1},
    ]
    write_csv(tmp_path / "faults.csv", rows, "# commit: 0123abc\n# seed: 5\n")
    header, _, killed, disk, everything, _, origin = fault_table(tmp_path).splitlines()
    assert header.startswith("| fault | trials | same result |")
    assert killed == "| killed | 1,100 | 1,099 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 0 | 0 |"
    assert disk == "| disk | 7 | 3 | 0 | 0 | 0 | 0 | 4 | 0 | 0 | 0 | 0 | 0 |"
    assert everything == "| **all** | 1,107 | 1,102 | 0 | 0 | 0 | 0 | 4 | 0 | 0 | 1 | 0 | 0 |"
    counted, origin = origin.split(". ", 1)
    assert counted == "6 commands ran in forked children, 3 in processes of their own"
    assert origin == "From `results/measured/faults.csv`: commit: 0123abc; seed: 5."
    (tmp_path / "faults.csv").write_text("fault,trials\nkilled,many\n")
    with pytest.raises(SetupError, match="not as `make faults` writes it"):
        fault_table(tmp_path)
