import json
import math
import os
import subprocess
import sys
import textwrap

import pytest

from fourierformer.errors import UserError
from fourierformer.tracking.jsonl import JsonlTracker, read_lines
from tests.helpers.command_line import read_metrics


def steps(path):
    return [row["step"] for row in read_metrics(path)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def test_rows_come_back(path):
    rows = [
        {"step": 1, "train_loss": 5.25, "radius/00": 2.0},
        {"step": 1, "valid_ppl": math.inf},
        {"step": 2, "name": "é"},
    ]
    tracker = JsonlTracker(path)
    assert read_metrics(path) == []
    for row in rows:
        tracker.log(row)
    assert read_metrics(path) == rows  # before close: a reader sees a running training
    tracker.close(0)
    assert len(path.read_text().splitlines()) == 3


def test_position_is_the_length_of_what_is_safe(path):
    tracker = JsonlTracker(path)
    assert tracker.position() == 0
    tracker.log({"step": 1})
    assert tracker.position() == path.stat().st_size > len(b'{"step": 1}\n')


def test_rewind_leaves_no_duplicate_and_no_missing_step(path):
    tracker = JsonlTracker(path)
    for step in range(1, 6):
        tracker.log({"step": step})
    at_checkpoint = tracker.position()
    for step in range(6, 9):
        tracker.log({"step": step})
    with open(path, "ab") as file:
        file.write(b'{"step": 9, "tra')  # killed here
    resumed = JsonlTracker(path)
    resumed.rewind(at_checkpoint)
    for step in range(6, 11):
        resumed.log({"step": step})
    assert steps(path) == list(range(1, 11))


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3}', b"\xff\x00"])
def test_a_torn_last_line_is_not_read_and_not_written_after(path, torn):
    tracker = JsonlTracker(path)
    tracker.log({"step": 1})
    tracker.log({"step": 2})
    tracker.close(1)
    with open(path, "ab") as file:
        file.write(torn)
    assert steps(path) == [1, 2]
    JsonlTracker(path).log({"step": 3})
    assert steps(path) == [1, 2, 3]


def test_a_file_that_is_only_a_torn_line(path):
    path.parent.mkdir()
    path.write_bytes(b'{"step"')
    assert read_metrics(path) == []
    JsonlTracker(path).log({"step": 1})
    assert steps(path) == [1]


def test_damage_in_the_middle_is_named(path):
    path.parent.mkdir()
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    assert read_lines(path.read_bytes()).damaged == [2]


@pytest.mark.parametrize("content", ["", '{"step": 1}\n', '{"step": 1, "more": 1}\n{"step": 2}\n'])
def test_a_shortened_or_edited_file_is_refused(path, content):
    tracker = JsonlTracker(path)
    tracker.log({"step": 1})
    tracker.log({"step": 2})
    offset = tracker.position()
    path.write_text(content)
    with pytest.raises(UserError, match=r"metrics\.jsonl .* shortened or edited.*fresh=true"):
        JsonlTracker(path).rewind(offset)


def test_an_intact_log_of_another_run_is_refused(path, tmp_path):
    """Of the same length, with checksums that fit."""
    tracker, other = JsonlTracker(path), JsonlTracker(tmp_path / "other.jsonl")
    tracker.log({"step": 1, "train_loss": 2.5})
    other.log({"step": 1, "train_loss": 3.5})
    offset, check = tracker.position(), tracker.last_check
    JsonlTracker(path).rewind(offset, check)
    (tmp_path / "other.jsonl").replace(path)
    JsonlTracker(path).rewind(offset)  # of a checkpoint of an earlier version, which knows its length alone
    with pytest.raises(UserError, match=r"metrics\.jsonl is the log of another run"):
        JsonlTracker(path).rewind(offset, check)


def test_rewind_to_the_beginning(path):
    tracker = JsonlTracker(path)
    tracker.log({"step": 1})
    tracker.rewind(0)
    assert read_metrics(path) == []


def test_a_full_disk_is_fatal_and_clear(path, monkeypatch):
    tracker = JsonlTracker(path)
    tracker._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(UserError, match=r"metrics\.jsonl \(No space left on device\).*same command resumes"):
        tracker.log({"step": 1})
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        tracker.position()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*metrics\.jsonl"):
        JsonlTracker(tmp_path / "file" / "metrics.jsonl")


def test_kill_loses_nothing_that_was_logged(path):
    code = """
        import os, signal, sys
        from fourierformer.tracking.jsonl import JsonlTracker
        tracker = JsonlTracker(sys.argv[1])
        for step in range(100):
            tracker.log({"step": step})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), path])
    assert done.returncode == -9
    assert steps(path) == list(range(100))


def test_every_line_is_json(path):
    tracker = JsonlTracker(path)
    tracker.log({"step": 1, "text": "two\nlines\u2028"})
    assert [json.loads(line)["step"] for line in path.read_bytes().split(b"\n") if line] == [1]
    assert steps(path) == [1]


def logged(path, count: int) -> list[dict]:
    tracker, rows = JsonlTracker(path), [{"step": step, "train_loss": 5.25 / step} for step in range(1, count + 1)]
    for row in rows:
        tracker.log(row)
    tracker.close(0)
    return rows


def test_every_flipped_bit_loses_its_row_or_changes_nothing(path):
    rows, content = logged(path, 3), path.read_bytes()
    for place in range(len(content)):
        for bit in (0, 3, 6):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            lines = read_lines(bytes(damaged))
            known = [{key: row[key] for key in rows[0]} for row in lines.rows if set(rows[0]) <= set(row)]
            assert len(known) == len(lines.rows)
            assert all(row in rows for row in known), (place, bit)
            torn = place == len(content) - 1  # the last line end: as if the process had been killed there
            assert lines.damaged or torn, (place, bit)


def test_a_missing_and_a_repeated_row_are_noticed(path):
    logged(path, 4)
    first, second, third, fourth = path.read_bytes().splitlines(keepends=True)
    assert read_lines(first + third + fourth).damaged == [2]
    assert read_lines(first + second + second + third + fourth).damaged == [3]
    assert read_lines(first + third + second + fourth).damaged


def test_a_run_does_not_go_on_after_a_damaged_row(path):
    logged(path, 3)
    path.write_bytes(path.read_bytes().replace(b"2.625", b"2.125"))
    with pytest.raises(UserError, match=r"metrics.jsonl, line 2 is damaged: it does not match its checksum"):
        JsonlTracker(path).rewind(path.stat().st_size)


def test_a_file_of_an_earlier_version_goes_on_with_checks(path):
    path.parent.mkdir()
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tracker = JsonlTracker(path)
    tracker.rewind(len('{"step": 1}\n'))
    tracker.log({"step": 2})
    tracker.log({"step": 3})
    assert steps(path) == [1, 2, 3]
    assert path.read_text().count('"check"') == 2
