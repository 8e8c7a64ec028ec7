"""JSON files of a run notice every change of their values; what is no such file is named."""

import json
import os

import pytest

from fourierformer.config import from_yaml
from fourierformer.errors import SetupError, UserError
from fourierformer.files import read_csv, read_json, write_json
from fourierformer.results import collect
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.sweep import read_record
from fourierformer.runs.train import wandb_id
from fourierformer.tracking.jsonl import JsonlTracker

VALUES = {"schema": 1, "results": {"test": {"sliding": {"ppl": 61.25, "tokens": 245_568}}}, "notes": ["é", None, True]}


def test_every_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, VALUES)
    assert read_json(path) == VALUES
    content, noticed = path.read_bytes(), 0
    for place in range(len(content)):
        for bit in (0, 4, 7):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                values = read_json(path)
            except UserError:
                noticed += 1
                continue
            # only the name of the checksum's key can be damaged unseen, which then is one more value
            assert {key: value for key, value in values.items() if key in VALUES} == VALUES, (place, bit)
    assert noticed > 2.5 * len(content)  # spaces between values mean nothing


def test_an_edited_number_is_noticed_and_a_file_without_checksum_is_read(tmp_path):
    path = tmp_path / "evaluation.json"
    write_json(path, VALUES)
    path.write_text(path.read_text().replace("61.25", "16.25"))
    with pytest.raises(UserError, match=r"evaluation.json is damaged .*does not match its checksum"):
        read_json(path)
    path.write_text(json.dumps(VALUES))  # as earlier versions wrote it
    assert read_json(path) == VALUES


@pytest.mark.parametrize("content", ["[]", "7", "null", '"text"', "{", "", "\x00", "[" * 100_000])
def test_what_is_no_object_is_named(tmp_path, content):
    path = tmp_path / "status.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"status.json is damaged \(.+\): restore it from a copy, or delete it"):
        read_json(path)


def test_a_file_larger_than_the_memory_is_named_and_not_read(tmp_path):
    """With holes, it takes no room on the disk."""
    for name in ("status.json", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 40 * 2**30)
    size = "it has 42,949,672,960 bytes"
    with pytest.raises(UserError, match=f"status.json is damaged .{size}"):
        read_json(tmp_path / "status.json")
    with pytest.raises(SetupError, match=f"config.yaml cannot be read .{size}"):
        from_yaml(tmp_path / "config.yaml")
    with pytest.raises(UserError, match=f"metrics.jsonl is damaged .{size}"):
        JsonlTracker(tmp_path / "metrics.jsonl")
    (run,) = collect(tmp_path)
    assert any(f"metrics.jsonl cannot be read: {size}" in remark for remark in run.remarks())


def in_the_way(path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.name)
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_stands_in_the_place_of_a_file_is_refused_before_anything_is_trained(tmp_path, kind):
    for name in ("config.yaml", "metrics.jsonl", "status.json", "summary.json", "meta.json", "evaluation.json"):
        run = RunDirectory(tmp_path / name / "run")
        run.path.mkdir(parents=True)
        in_the_way(run.path / name, kind)
        with pytest.raises(SetupError, match=f"{name} .*Move it away; the same command resumes"), run.lock():
            pass


def test_a_damaged_record_of_a_job_is_a_job_without_a_result(tmp_path):
    (tmp_path / "00000.json").write_text(
        '{"number": 0, "overrides": ["seed=1"], "pid": 1, "host": "a", "exit_code": 0}'
    )
    (tmp_path / "00001.json").write_text('{"number": 1, "over')
    (tmp_path / "00002.json").write_text("[]")
    for number, pid in enumerate((0, -1), 3):  # a signal to 0 or -1 goes to many processes
        (tmp_path / f"0000{number}.json").write_text(f'{{"number": {number}, "pid": {pid}, "host": "a"}}')
    whole, *damaged = read_record(tmp_path)
    assert whole["exit_code"] == 0
    assert [(job["number"], job["pid"], job["host"]) for job in damaged] == [
        (number, 0, "an unknown machine") for number in (1, 2, 3, 4)
    ]
    assert not any("exit_code" in job for job in damaged)


def test_a_csv_file_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes("run,experiment\nréseau,a\n".encode("latin-1"))
    with pytest.raises(SetupError, match=r"runs.csv is not a CSV file in UTF-8"):
        read_csv(path)
    with pytest.raises(SetupError, match="cannot be read: Is a directory"):
        read_csv(tmp_path)


def test_the_id_in_wandb_is_drawn_again_where_it_cannot_be_read(tmp_path):
    run = RunDirectory(tmp_path)
    first = wandb_id(run)
    assert wandb_id(run) == first
    run.wandb_id.write_bytes(b"\xff not an id")
    second = wandb_id(run)
    assert second != first
    assert wandb_id(run) == second
    run.wandb_id.unlink()
    for kind in ("folder", "link", "pipe"):
        in_the_way(run.wandb_id, kind)
        assert len(wandb_id(run)) == 12  # whatever is there, the training goes on
        run.wandb_id.rmdir() if kind == "folder" else run.wandb_id.unlink()


def test_in_a_sweep_of_wandb_its_agent_chooses_the_id(tmp_path, monkeypatch):
    """It waits for a run of this id. Alone, the variable is of another run, such as the one that starts ours."""
    run = RunDirectory(tmp_path)
    own = wandb_id(run)
    monkeypatch.setenv("WANDB_RUN_ID", "trial7")
    assert wandb_id(run) == own
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    assert wandb_id(run) == "trial7"
    monkeypatch.undo()
    assert wandb_id(run) == own
