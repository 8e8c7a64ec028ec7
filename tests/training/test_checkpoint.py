"""A completed checkpoint is never lost, a damaged one never loaded, and neither happens silently."""

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import time
from types import SimpleNamespace

import numpy
import pytest
import torch

from fourierformer.errors import UserError
from fourierformer.training import checkpoint as checkpoint_module
from fourierformer.training import state_file
from fourierformer.training.checkpoint import Checkpoints


def state(step):
    return {
        "step": step,
        "weights": torch.full((64,), float(step)),
        "nested": {"rates": [1e-3, None], "tuple": (1, "a", True)},
    }


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def saved(directory, steps, best=(), keep=2):
    checkpoints = Checkpoints(directory, keep=keep)
    for step in steps:
        checkpoints.save(step, state(step), best=step in best)
    return checkpoints


def flip_bit(path, position=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


def test_what_is_loaded_is_what_was_saved(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    before = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "bf16": torch.ones(3).bfloat16(),
    }
    path = Checkpoints(tmp_path).save(7, before)
    assert path.name == "step_00000007"
    assert names(path) == ["MANIFEST.json", "state.pt"]
    step, after = Checkpoints(tmp_path).latest()
    assert step == 7
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.load(path / "state.pt", weights_only=True)["bf16"].dtype == torch.bfloat16


def test_what_has_the_name_of_a_leftover_is_deleted_and_where_it_leads_stays(tmp_path):
    checkpoints, other = saved(tmp_path / "run", [1]), tmp_path / "other"
    other.mkdir()
    (checkpoints.directory / "step_00000002.tmp").symlink_to(other)
    os.mkfifo(checkpoints.directory / "step_00000003.tmp")
    checkpoints.tidy()
    assert names(checkpoints.directory) == ["step_00000001"]
    assert other.is_dir()


def test_a_link_in_place_of_an_old_checkpoint_is_deleted_whole_and_where_it_leads_stays(tmp_path):
    checkpoints, other = saved(tmp_path / "run", [1, 2], keep=1), tmp_path / "other"
    other.mkdir()
    (checkpoints.directory / "step_00000001").symlink_to(other)
    checkpoints.save(3, state(3), best=True)  # so that none before it can be the best
    assert names(checkpoints.directory) == ["step_00000003"]
    assert other.is_dir()


def test_none_when_there_are_none(tmp_path):
    checkpoints = Checkpoints(tmp_path / "not there yet")
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    assert not checkpoints.directory.exists()  # looking changes nothing


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_keeps_the_last_ones_and_the_best(tmp_path, keep):
    checkpoints = saved(tmp_path, range(10, 70, 10), best={10, 20}, keep=keep)
    expected = [f"step_{step:08d}" for step in range(10, 70, 10)][-keep:]
    assert names(tmp_path) == ["step_00000020", *expected]
    assert checkpoints.best()[0] == 20
    assert checkpoints.latest()[0] == 60


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpoints = saved(tmp_path, [10, 20])
    for value in (1.0, 2.0):
        checkpoints.save(20, {"micro": value})
    assert checkpoints.latest() == (20, {"micro": 2.0})
    assert names(tmp_path) == ["step_00000010", "step_00000020-3"]


def test_the_best_stays_when_its_step_is_saved_again(tmp_path):
    checkpoints = saved(tmp_path, [10], best={10})
    checkpoints.save(10, {"micro": 1})
    assert checkpoints.latest() == (10, {"micro": 1})
    assert checkpoints.best()[1]["step"] == 10


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (numpy.float64(1.0), "loss"),
        (random.Random(0), "loss"),
        ({"a": [numpy.arange(2)]}, r"\['a'\]\[0\]"),
        (torch.Size([1]), "loss"),
        ({numpy.int64(1): 2.0}, r"a key of state\['loss'\]"),
    ],
)
def test_what_would_not_load_is_refused_before_it_is_written(tmp_path, value, where):
    with pytest.raises(TypeError, match=where):
        Checkpoints(tmp_path).save(1, {"loss": value})
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(127, "Key has expired")])
def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path, monkeypatch, error):
    """Otherwise a run would begin again at step 0, and cut its log."""
    checkpoints = saved(tmp_path, [10, 20])

    def refused(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refused)
        patch.setattr(os, "listdir", refused)
        for read in (checkpoints.latest, checkpoints.best, checkpoints.newest_step, checkpoints.tidy):
            with pytest.raises(UserError, match=rf"{tmp_path} cannot be read \({error.strerror}\)"):
                read()
    assert checkpoints.latest()[0] == 20


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("mode", [0o000, 0o311, 0o444])
@pytest.mark.parametrize("part", [".", "step_00000020"])
def test_without_permission_nothing_is_begun_again(tmp_path, mode, part):
    saved(tmp_path, [10, 20])
    (tmp_path / part).chmod(mode)
    try:
        if part == "." or mode != 0o311:  # a checkpoint's directory need not be listed
            with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
                Checkpoints(tmp_path).latest()
    finally:
        (tmp_path / part).chmod(0o755)
    assert Checkpoints(tmp_path).latest()[0] == 20


def test_a_newest_checkpoint_without_permission_is_not_passed_over(tmp_path, monkeypatch):
    saved(tmp_path, [10, 20])

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checkpoint_module, "file_sha256", refused)
    with pytest.raises(UserError, match=r"step_00000020/state.pt cannot be read \(Permission denied\).*permissions"):
        Checkpoints(tmp_path).latest()


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def rewrite(path, **values):
    """Changes MANIFEST.json."""
    manifest = path / "MANIFEST.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | values))


DAMAGES = {
    "bit flip": (lambda path: flip_bit(path / "state.pt"), "state.pt has another sha256"),
    "truncation": (lambda path: truncate(path / "state.pt"), "state.pt has .* bytes instead of"),
    "empty": (lambda path: os.truncate(path / "state.pt", 0), "state.pt has 0 bytes"),
    "missing state": (lambda path: (path / "state.pt").unlink(), "state.pt is missing"),
    "missing manifest": (lambda path: (path / "MANIFEST.json").unlink(), "MANIFEST.json is missing"),
    "torn manifest": (lambda path: truncate(path / "MANIFEST.json"), "MANIFEST.json is not readable"),
    "binary manifest": (
        lambda path: (path / "MANIFEST.json").write_bytes(b"\xff\xfe\x00"),
        "MANIFEST.json is not readable",
    ),
    "list manifest": (lambda path: (path / "MANIFEST.json").write_text("[]"), "MANIFEST.json is not readable"),
    "newer format": (lambda path: (path / "MANIFEST.json").write_text('{"format": 99}'), "format 99"),
    "a manifest of nothing": (lambda path: rewrite(path, files={}), "MANIFEST.json does not list state.pt"),
    "a word for best": (lambda path: rewrite(path, best="no"), "MANIFEST.json is not readable"),
    "another step": (lambda path: shutil.copy(path.parent / "step_00000010/MANIFEST.json", path), "is of step 10"),
    "a pipe": (lambda path: ((path / "state.pt").unlink(), os.mkfifo(path / "state.pt")), "state.pt is not a file"),
    "a pipe for a manifest": (
        lambda path: ((path / "MANIFEST.json").unlink(), os.mkfifo(path / "MANIFEST.json")),
        "MANIFEST.json is not readable",
    ),
    "a file instead of it": (lambda path: (shutil.rmtree(path), path.write_text("")), "MANIFEST.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_falls_back_with_the_reason(tmp_path, damage):
    saved(tmp_path, [10, 20])
    harm, reason = DAMAGES[damage]
    harm(tmp_path / "step_00000020")
    messages = []
    checkpoints = Checkpoints(tmp_path, say=messages.append)
    step, loaded = checkpoints.latest()
    assert step == checkpoints.newest_step() == 10
    assert torch.equal(loaded["weights"], state(10)["weights"])
    assert len(messages) == 1
    assert "step_00000020" in messages[0]
    assert re.search(reason, messages[0])


def test_all_damaged_is_an_error_and_never_a_start_from_scratch(tmp_path):
    saved(tmp_path, [10, 20], best={10})
    for path in tmp_path.iterdir():
        flip_bit(path / "state.pt")
    messages = []
    with pytest.raises(UserError, match=r"Every checkpoint .* is damaged .*step_00000020.*step_00000010.*fresh=true"):
        Checkpoints(tmp_path, say=messages.append).latest()
    with pytest.raises(UserError, match="Every best checkpoint"):
        Checkpoints(tmp_path, say=messages.append).best()


def test_a_damaged_best_is_named(tmp_path):
    saved(tmp_path, [10, 20, 30, 40], best={10, 40}, keep=4)
    flip_bit(tmp_path / "step_00000040" / "state.pt")
    messages = []
    assert Checkpoints(tmp_path, say=messages.append).best()[0] == 10
    assert "best checkpoint" in messages[0]
    (tmp_path / "step_00000040" / "MANIFEST.json").write_text("{")
    assert Checkpoints(tmp_path, say=messages.append).best()[0] == 10
    assert "step_00000040" in messages[1]


def test_a_damaged_one_does_not_push_out_good_ones(tmp_path):
    saved(tmp_path, [30, 40], keep=2)
    flip_bit(tmp_path / "step_00000040" / "state.pt")
    checkpoints = Checkpoints(tmp_path, keep=2, say=lambda message: None)
    assert checkpoints.latest()[0] == 30
    checkpoints.save(35, state(35))
    assert names(tmp_path) == ["step_00000030", "step_00000035"]
    flip_bit(tmp_path / "step_00000035" / "state.pt")
    assert Checkpoints(tmp_path, say=lambda message: None).latest()[0] == 30


def test_a_damaged_step_that_is_reached_again_is_saved_again(tmp_path):
    saved(tmp_path, [30, 40])
    flip_bit(tmp_path / "step_00000040" / "state.pt")
    checkpoints = Checkpoints(tmp_path, say=lambda message: None)
    checkpoints.latest()
    checkpoints.save(40, state(40))
    messages = []
    assert Checkpoints(tmp_path, say=messages.append).latest()[0] == 40
    assert messages == []


def test_leftovers_are_ignored_then_swept(tmp_path):
    saved(tmp_path, [10])
    (tmp_path / "step_00000020.tmp").mkdir()
    (tmp_path / "step_00000020.tmp" / "state.pt").write_bytes(b"half")
    (tmp_path / "step_notes").mkdir()  # not ours, not touched
    assert Checkpoints(tmp_path).latest()[0] == 10
    assert "step_00000020.tmp" in names(tmp_path)  # another process may be writing it while we only look
    Checkpoints(tmp_path).save(30, state(30))
    assert names(tmp_path) == ["step_00000010", "step_00000030", "step_notes"]


def test_a_start_deletes_what_a_killed_save_left(tmp_path):
    """Killed between the renaming of a checkpoint and the deletion of the oldest, or within the latter."""
    checkpoints = Checkpoints(tmp_path, keep=9)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state(step), best=step == 1)
    (tmp_path / "step_00000005.tmp").mkdir()
    (tmp_path / "step_00000005.tmp" / "state.pt").write_bytes(b"half")
    killed = Checkpoints(tmp_path, keep=2)
    assert killed.latest()[0] == 4
    killed.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000001", "step_00000003", "step_00000004"]
    (tmp_path / "step_00000004" / "state.pt").write_bytes(b"")
    damaged = Checkpoints(tmp_path, keep=1, say=lambda line: None)
    assert damaged.latest()[0] == 3
    damaged.tidy()
    assert len(list(tmp_path.iterdir())) == 3, "nothing good is deleted because of a damaged one"


@pytest.mark.parametrize("best", [True, False])
def test_a_damaged_checkpoint_that_is_not_resumed_from_is_named_at_the_start(tmp_path, best):
    saved = Checkpoints(tmp_path)
    saved.save(1, state(1), best=best)
    saved.save(2, state(2))
    (tmp_path / "step_00000001" / "state.pt").write_bytes(b"")
    lines = []
    resumed = Checkpoints(tmp_path, say=lines.append)
    assert resumed.latest()[0] == 2
    assert not lines
    resumed.tidy()
    assert len(lines) == 1
    assert re.search(r"step_00000001 is damaged \(state.pt has 0 bytes .*The training does not need it", lines[0])
    assert ("until it is restored" in lines[0]) == best


def test_no_room_is_seen_before_writing(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, [10])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    monkeypatch.setattr(checkpoint_module, "_write", lambda *arguments: pytest.fail("wrote without room"))
    with pytest.raises(
        UserError, match=r"Step 20 .*full: needs 1\.0 MiB, free 0\.0 MiB.*step 10, is intact.*same command resumes"
    ):
        checkpoints.save(20, state(20))
    assert names(tmp_path) == ["step_00000010"]


def test_the_room_asked_for_counts_shared_storage_once():
    weight = torch.zeros(1000, 1000)  # 4,000,000 bytes
    tied = {"a": weight, "b": weight, "c": [weight[:10]]}
    assert 4_000_000 < state_file.state_bytes(tied) < 4_000_000 * 1.02 + 2**20 + 1


class FailingDisk:
    """Counts every step that touches the disk and fails the chosen one with ENOSPC."""

    def __init__(self, monkeypatch, fail_at=None):
        self.operations = []
        self.fail_at = fail_at
        for name in ("mkdir", "fsync", "replace"):
            monkeypatch.setattr(os, name, self.counted(name, getattr(os, name)))
        for module in (checkpoint_module, state_file):
            monkeypatch.setattr(module, "open", self.open, raising=False)

    def counted(self, name, function):
        def call(*arguments, **keywords):
            self.operations.append(name)
            if len(self.operations) - 1 == self.fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*arguments, **keywords)

        return call

    def open(self, path, mode="r"):
        file = open(path, mode)  # noqa: SIM115 (closed in __exit__)
        if "w" not in mode:
            return file
        write = self.counted("write", file.write)
        flush = self.counted("flush", file.flush)

        class File:
            def __enter__(self):
                return self

            def __exit__(self, *exception):
                file.close()

            def __getattr__(self, name):
                return {"write": write, "flush": flush}.get(name) or getattr(file, name)

        return File()


def test_a_full_disk_at_any_operation_leaves_what_was_there(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        disk = FailingDisk(patch)
        saved(tmp_path / "count", [10, 20], keep=2)
        before = len(disk.operations)
        Checkpoints(tmp_path / "count", keep=2).save(30, state(30), best=True)
        operations = disk.operations[before:]
    assert set(operations) == {"mkdir", "write", "flush", "fsync", "replace"}
    # state and manifest are on the disk before they have a name, the names before the old checkpoint loses its own
    kinds = [operation for operation in operations if operation not in ("mkdir", "write", "flush")]
    assert kinds == ["fsync", "fsync", "replace", "fsync", "replace", "fsync", "replace"]
    for index, operation in enumerate(operations):
        directory = tmp_path / f"{index}"
        saved(directory, [10, 20])
        messages = []
        checkpoints = Checkpoints(directory, say=messages.append)
        with monkeypatch.context() as patch:
            FailingDisk(patch, fail_at=index)
            if index == 0:  # mkdir of the directory that is there already: no room needed, none missed
                checkpoints.save(30, state(30))
                continue
            if index == len(operations) - 1:  # the rename that begins to delete step 10: nothing is lost, nothing stops
                assert operation == "replace"
                checkpoints.save(30, state(30), best=True)
                assert "could not be deleted" in messages[0]
                continue
            with pytest.raises(UserError) as caught:
                checkpoints.save(30, state(30), best=True)
        assert names(directory) == ["step_00000010", "step_00000020"], (index, operation)
        message = str(caught.value)
        assert "No space left on device" in message
        assert "Step 30 could not be saved" in message
        assert "step 20, is intact" in message
        assert Checkpoints(directory).latest()[0] == 20
        checkpoints.save(30, state(30), best=True)  # and once there is room again, it goes on
        assert Checkpoints(directory).best()[0] == 30


def limited_save(directory, answers):
    """The kernel itself refuses after 100 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        Checkpoints(directory).save(20, {"weights": torch.zeros(100_000)})
    except UserError as error:
        answers.send(str(error))
    else:
        answers.send("saved")


@pytest.fixture(scope="module")
def processes():
    """Forks of a clean process that has imported torch already: the import alone would take longer than the test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fourierformer.training.checkpoint"])
    return context


def test_a_refusing_kernel_is_reported_as_what_it_is(tmp_path, processes):
    saved(tmp_path, [10])
    receiver, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=limited_save, args=(tmp_path, sender))
    child.start()
    assert receiver.poll(60)
    assert "File too large" in receiver.recv()
    child.join(60)
    assert child.exitcode == 0
    assert names(tmp_path) == ["step_00000010"]


def save_for_ever(directory, first, reports):
    """Steps 1, 1, 2, 2, ...: every step twice, every third one the best."""
    checkpoints = Checkpoints(directory, keep=2)
    for count in range(2 * first, 10**9):
        step = count // 2
        checkpoints.save(step, state(step), best=step % 3 == 0)
        os.write(reports.fileno(), step.to_bytes(8, "little"))


def test_kill_at_any_moment_loses_no_completed_checkpoint(tmp_path, processes):
    generator = random.Random(0)
    first = 1
    for _ in range(15):
        receiver, sender = processes.Pipe(duplex=False)
        child = processes.Process(target=save_for_ever, args=(tmp_path, first, sender))
        child.start()
        sender.close()
        reported = int.from_bytes(os.read(receiver.fileno(), 8), "little")
        time.sleep(generator.uniform(0, 0.05))
        child.kill()
        child.join(60)
        while report := os.read(receiver.fileno(), 8):
            reported = int.from_bytes(report, "little")
        messages = []
        step, loaded = Checkpoints(tmp_path, say=messages.append).latest()
        assert messages == []
        assert step in (reported, reported + 1)  # the one after may be complete without having been reported
        assert loaded["step"] == step
        assert torch.equal(loaded["weights"], state(step)["weights"])
        if reported >= 3:
            assert Checkpoints(tmp_path).best()[0] in (reported // 3 * 3, (reported + 1) // 3 * 3)
        first = step + 1
    Checkpoints(tmp_path).save(first, state(first))
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
    assert first > 15


class Code:
    """Unpickled without care, this makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("write", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state))])
@pytest.mark.parametrize("content", ["code", "a list"])
def test_a_crafted_checkpoint_is_refused_in_one_line_and_runs_no_code(tmp_path, write, content):
    """Its manifest fits it: only the content says that no run wrote it."""
    saved(tmp_path / "run", [10])
    path = tmp_path / "run" / "step_00000010"
    write({"model": Code(tmp_path / "ran")} if content == "code" else [1], path / "state.pt")
    manifest = json.loads((path / "MANIFEST.json").read_text())
    data = (path / "state.pt").read_bytes()
    manifest["files"]["state.pt"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"state.pt is no state of a run") as caught:
        Checkpoints(tmp_path / "run").latest()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_may_be_the_best_is_not_deleted(tmp_path):
    saved(tmp_path, [10], best={10})
    (tmp_path / "step_00000010" / "MANIFEST.json").write_text("{")
    for step in (20, 30, 40):
        Checkpoints(tmp_path).save(step, state(step))
    assert "step_00000010" in names(tmp_path)
    with pytest.raises(UserError, match="Every best checkpoint"):
        Checkpoints(tmp_path).best()


@pytest.mark.parametrize("name", ["MANIFEST.json", "state.pt"])
def test_a_damaged_checkpoint_is_not_one_of_those_that_are_kept(tmp_path, name):
    """keep=3 are three intact ones, as in an unbroken run; a damaged one stays beside them while it may be the best."""
    saved(tmp_path, [10, 20, 30, 40], best={10, 30}, keep=4)
    (tmp_path / "step_00000030" / name).write_text("{")
    checkpoints = Checkpoints(tmp_path, keep=3, say=lambda message: None)
    assert checkpoints.latest()[0] == 40
    checkpoints.tidy()
    checkpoints.save(50, state(50))
    assert names(tmp_path) == [f"step_{step:08d}" for step in (10, 20, 30, 40, 50)]
    checkpoints.save(60, state(60), best=True)
    assert names(tmp_path) == [f"step_{step:08d}" for step in (40, 50, 60)]


def test_a_damaged_checkpoint_that_was_not_the_best_goes_with_the_next_one(tmp_path):
    saved(tmp_path, [10, 20, 30], best={10}, keep=3)
    (tmp_path / "step_00000020" / "state.pt").write_text("{")
    checkpoints = Checkpoints(tmp_path, keep=3, say=lambda message: None)
    assert checkpoints.latest()[0] == 30
    checkpoints.tidy()
    checkpoints.save(40, state(40))
    assert names(tmp_path) == [f"step_{step:08d}" for step in (10, 30, 40)]


def test_the_manifest_is_readable_by_people(tmp_path):
    path = Checkpoints(tmp_path).save(3, state(3), best=True)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    assert manifest["step"] == 3
    assert manifest["best"] is True
    assert manifest["files"]["state.pt"]["bytes"] == (path / "state.pt").stat().st_size
