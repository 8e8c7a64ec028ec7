import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from fourierformer import provenance
from fourierformer.errors import SetupError, UserError
from fourierformer.files import atomic_write_text, read_json
from fourierformer.runs.directory import RunDirectory
from fourierformer.tracking.jsonl import JsonlTracker

HOLDER = """
import sys, time
from fourierformer.runs.directory import RunDirectory
with RunDirectory(sys.argv[1]).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "runs" / "quickstart" / "lm_tiny-fourier-s1-a1b2c3d4")


@pytest.fixture
def holder(run):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_the_lock_names_its_holder(run, holder):
    with (
        pytest.raises(SetupError, match=rf"pid {holder.pid}\) is using .*lm_tiny-fourier-s1-a1b2c3d4.*runs_root="),
        run.lock(),
    ):
        pass


def test_a_killed_holder_holds_nothing(run, holder):
    holder.kill()
    holder.wait()
    with run.lock():
        assert (run.path / ".lock").read_text() == f"{os.getpid()}\n"
    with run.lock():  # and it can be taken again
        pass


def test_a_run_in_use_is_not_set_aside(run, holder):
    with pytest.raises(SetupError, match=str(holder.pid)):
        run.set_aside()
    assert run.path.exists()


def test_a_lock_taken_in_a_directory_that_moves_is_taken_again(run, monkeypatch):
    """Between opening and locking, another process sets the directory aside."""
    import fcntl

    real = fcntl.flock
    moved = []

    def flock(handle, flags):
        if not moved:
            moved.append(run.path.rename(run.path.with_name("moved")))
        return real(handle, flags)

    monkeypatch.setattr(fcntl, "flock", flock)
    with run.lock():
        assert (run.path / ".lock").read_text() == f"{os.getpid()}\n"
    assert moved[0].exists()


def test_set_aside_keeps_everything(run):
    assert run.set_aside() is None
    for number in (1, 2, 3):
        with run.lock():
            run.metrics.write_text(f"{number}")
        target = run.set_aside()
        assert target.name == f"{run.name}.old-{number}"
        assert (target / "metrics.jsonl").read_text() == f"{number}"
        assert not run.path.exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SetupError, match=r"Cannot write the run directory .*file/run.*runs_root="),
        RunDirectory(tmp_path / "file" / "run").lock(),
    ):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SetupError, match="Permission denied"), RunDirectory(tmp_path / "run").lock():
        pass


def test_no_write_permission_in_an_existing_directory(run, monkeypatch):
    run.create()

    def refuse(path, *arguments):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SetupError, match=r"Permission denied.*runs_root="), run.lock():
        pass


def test_a_lock_file_of_another_user(run, monkeypatch):
    def refuse(path, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(path))

    run.create()
    with monkeypatch.context() as patch:
        patch.setattr("fourierformer.runs.directory.RunDirectory.create", lambda self: None)
        patch.setattr(os, "open", refuse)
        with pytest.raises(SetupError, match="Permission denied"), run.lock():
            pass


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl"])
@pytest.mark.parametrize("make", [os.symlink, os.mkfifo, os.mkdir])
def test_a_link_or_worse_in_the_place_of_a_file_is_refused_and_kept(run, tmp_path, name, make):
    target = tmp_path / "precious"
    target.write_text("four hundred pages")
    run.create()
    if make is os.symlink:
        os.symlink(target, run.path / name)
    else:
        make(run.path / name)
    open_it = run.lock().__enter__ if name == ".lock" else lambda: JsonlTracker(run.metrics)
    with pytest.raises(UserError, match=f"{run.path}.*(is a symbolic link|is no plain file|Is a directory)"):
        open_it()
    assert target.read_text() == "four hundred pages"


def test_a_lock_file_of_another_program_is_not_emptied(run):
    run.create()
    (run.path / ".lock").write_text('{"dependencies": []}')
    with pytest.raises(SetupError, match="not a lock file of ours"), run.lock():
        pass
    assert (run.path / ".lock").read_text() == '{"dependencies": []}'


def test_only_an_empty_folder_or_a_run_is_ours(run, tmp_path):
    run.check_ours()  # there is none yet
    run.create()
    run.check_ours()
    with run.lock():  # killed at once
        run.write_status("running")
        run.check_ours()
        (run.path / "a note of mine").write_text("")
        run.config.write_text("")
        run.check_ours()
    for name in ("thesis.tex", "config.yaml", "checkpoints"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "thesis.tex").write_text("")
        (folder / name).touch()
        with pytest.raises(SetupError, match=f"{folder} is not a run directory and not empty .*run_dir="):
            RunDirectory(folder).check_ours()


def test_what_a_killed_process_left_is_deleted_at_the_next_start(run):
    run.create()
    gone = subprocess.Popen(["true"])
    gone.wait()
    own, token = os.getpid(), "0123456789abcdef"
    litter = [f".status.json.{gone.pid}-{token}.tmp", f".writable.{gone.pid}-{token}.tmp", f".a.{own}-{token}.tmp"]
    litter += [f".status.json.{gone.pid}.tmp", f".writable.{gone.pid}"]  # of earlier versions
    kept = [f".report.html.{os.getppid()}-{token}.tmp", "a.tmp", ".notes.tmp", f".notes.{gone.pid}-mine.tmp"]
    for name in litter + kept:
        (run.path / name).touch()
    with run.lock():
        assert {path.name for path in run.path.iterdir()} == {".lock", *kept}


def test_status_carries_the_last_step_into_the_failure(run):
    run.create()
    assert read_json(run.status) is None
    run.write_status("running", step=10, steps=100)
    run.write_status("failed", error="ValueError: no", traceback="Traceback ...")
    status = read_json(run.status)
    assert (status["state"], status["step"], status["steps"], status["error"]) == ("failed", 10, 100, "ValueError: no")
    assert status["pid"] == os.getpid()
    run.write_status("running", step=11)
    assert "error" not in read_json(run.status)  # a run that works again is not a failed one
    assert read_json(run.status)["updated"].endswith("+00:00")


def test_status_does_not_hide_the_error_that_is_on_its_way(run):
    with pytest.warns(UserWarning, match="could not be written"):  # the directory does not even exist
        run.write_status("failed", error="the real one")
    assert read_json(run.status) is None


def test_a_damaged_status_is_overwritten(run):
    run.create()
    run.status.write_text("{")
    run.write_status("running", step=1)
    assert read_json(run.status)["step"] == 1


def test_summary_round_trip_and_damage(run):
    run.create()
    assert read_json(run.summary) is None
    run.write(run.summary, {"schema": 1, "results": {"valid": {"segment": {"ppl": 61.2}}}})
    assert read_json(run.summary)["results"]["valid"]["segment"]["ppl"] == 61.2
    run.summary.write_text("{")
    with pytest.raises(UserError, match=r"summary\.json is damaged"):
        read_json(run.summary)


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    atomic_write_text(path, "old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                atomic_write_text(path, "new")
        assert path.read_text() == "old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def git(repository, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q")
    (path / "code.py").write_text("a = 1\n")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


def test_a_clean_commit(repository, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # another current directory changes nothing
    assert provenance.git_state(repository) == ({"commit": git(repository, "rev-parse", "HEAD"), "dirty": False}, None)


def test_uncommitted_changes_are_kept_when_small(repository, monkeypatch):
    (repository / "code.py").write_text("a = 2\n")
    (repository / "new.py").write_text("b = 1\n")
    facts, diff = provenance.git_state(repository)
    assert facts["dirty"] is True
    assert facts["untracked"] == ["new.py"]
    assert "+a = 2" in diff
    monkeypatch.setattr(provenance, "LARGEST_DIFF", 10)
    assert provenance.git_state(repository)[1] is None
    (repository / "code.py").write_text("a = 1\n")
    assert provenance.git_state(repository) == (facts, None)  # a new file is no part of a diff, which would be empty


def test_results_of_other_runs_are_no_change_of_the_program(repository):
    measured = repository / "results" / "measured"
    measured.mkdir(parents=True)
    (measured / "table1_quick.csv").write_text("run\n")
    assert provenance.git_state(repository)[0]["dirty"] is False
    (repository / "results" / "paper.csv").write_text("what runs are compared with\n")
    assert provenance.git_state(repository)[0]["dirty"] is True


def test_a_checkout_of_another_user_still_answers(repository, monkeypatch):
    """git's own switch for pretending that the repository belongs to somebody else."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True)
    assert "dubious ownership" in refused.stderr
    real = subprocess.run

    def as_another_user(*arguments, env, **keywords):
        return real(*arguments, env=env | {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}, **keywords)

    monkeypatch.setattr(provenance.subprocess, "run", as_another_user)
    assert len(provenance.git_state(repository)[0]["commit"]) == 40


def test_nothing_of_an_enclosing_repository_is_reported(repository):
    inside = repository / "venv" / "site-packages"
    inside.mkdir(parents=True)
    assert provenance.git_state(inside) == ({"commit": None, "dirty": None}, None)


def test_without_git_and_without_commits(repository, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert provenance.git_state(tmp_path / "empty")[0]["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert provenance.git_state(repository) == ({"commit": None, "dirty": None}, None)


def test_meta_says_where_the_run_comes_from(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_lm.py", "attention=fourier", "name=a b"])
    monkeypatch.setattr(provenance, "git_state", lambda: ({"commit": "a" * 40, "dirty": True}, "+a = 2\n"))
    run.create()
    meta = run.write_meta(run="first")
    assert read_json(run.meta) == meta
    assert meta["command"] == "python train_lm.py attention=fourier 'name=a b'"
    assert meta["versions"].keys() >= {"torch", "triton", "numpy", "hydra-core", "timm", "wandb", "datasets"}
    assert (run.path / meta["dirty_diff"]).read_text() == "+a = 2\n"
    monkeypatch.setattr(provenance, "git_state", lambda: ({"commit": "b" * 40, "dirty": False}, None))
    again = run.write_meta()
    assert again["commit"] == "b" * 40
    assert [start["commit"] for start in again["earlier"]] == ["a" * 40]
    assert len(run.write_meta()["earlier"]) == 2


def test_a_run_directory_costs_no_heavy_import():
    code = """
        import sys
        from fourierformer.runs.directory import RunDirectory
        from fourierformer import provenance
        provenance.describe()
        heavy = {"torch", "numpy", "wandb", "datasets", "hydra", "rich", "triton"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
