"""wandb without a network: runs are written offline and read back with wandb's own reader. Nothing leaves it."""

import glob
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fourierformer.network import reachable
from fourierformer.tracking import build_trackers
from fourierformer.tracking import wandb as tracking_wandb
from fourierformer.tracking.wandb import WandbTracker, choose_mode
from tests.helpers.command_line import MODEL, read_metrics, train_lm

pytest.importorskip("wandb")

SETTINGS = {
    "project": "fourierformer",
    "name": "lm_tiny-fourier-s1",
    "group": "quickstart/lm_tiny/fourier/0a1b2c3d",
    "job_type": "train",
    "tags": ["quickstart"],
    "id": "a1b2c3d4",
    "config": {"attention": {"name": "fourier", "power": 4}, "seed": 1},
    "samples": ("tokens", (1000).__mul__),  # a thousand at each step
}


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No account, no settings of the user, no variable from outside."""
    for name in list(os.environ):
        if name.startswith("WANDB_") or name.lower() in ("http_proxy", "https_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def inspect(directory, *options):
    program = shutil.which("wandb", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("the wandb command is not installed")
    done = subprocess.run([program, "leet", "inspect", "--json", *options, directory], capture_output=True, text=True)
    if "No such command" in done.stderr:
        pytest.skip("this wandb has no `wandb leet inspect` to read a run back with")
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_back(directory):
    """(history rows, run record, exit code) of one offline run."""
    records = [json.loads(line) for line in inspect(directory).splitlines()]
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    run = next(record["run"] for record in records if record["type"] == "run")
    exits = [record["exit"]["exit_code"] for record in records if record["type"] == "exit"]
    return history, run, exits[0] if exits else None


def offline_runs(run_dir):
    return sorted((run_dir / "wandb").glob("offline-run-*"))


def test_an_offline_run_reads_back_as_it_was_logged(run_dir):
    messages = []
    tracker = WandbTracker(dir=str(run_dir), **SETTINGS, mode="offline", say=messages.append)
    tracker.log({"step": 10, "train_loss": 5.5, "lr": 1e-3})
    tracker.log({"step": 20, "train_loss": 5.25})
    tracker.log({"step": 20, "valid_ppl": 190.5, "radius/00": 2.0})
    tracker.summary({"best/valid_ppl": 190.5})
    tracker.log({"step": 15, "train_loss": 9.0})  # comes again after a resume: no harm, no second point
    tracker.log({"step": 30, "train_loss": 5.0})
    tracker.close(0)
    (directory,) = offline_runs(run_dir)
    (message,) = messages
    assert message.startswith("wandb: offline (tracker.mode); send it later with: wandb sync ")
    assert glob.glob(shlex.split(message)[-1]) == [str(directory)]
    history, run, _ = read_back(directory)
    summary = json.loads(inspect(directory, "--summary"))
    assert [row["_step"] for row in history] == [10, 20, 30]
    assert [row["train_loss"] for row in history] == [5.5, 5.25, 5.0]
    assert [row["tokens"] for row in history] == [10_000, 20_000, 30_000]  # an x-axis to choose
    assert (history[1]["valid_ppl"], history[1]["radius/00"]) == (190.5, 2.0)
    assert summary["summary"]["best/valid_ppl"] == 190.5
    assert (summary["state"], summary["exit_code"]) == ("finished", 0)
    assert summary["config"] == SETTINGS["config"]  # nested, as the UI groups it
    assert (run["run_group"], run["run_id"], run["job_type"]) == (SETTINGS["group"], "a1b2c3d4", "train")
    assert (run["project"], run["display_name"], run["tags"]) == ("fourierformer", "lm_tiny-fourier-s1", ["quickstart"])


def test_a_resumed_run_keeps_its_id_and_its_steps(run_dir):
    messages = []
    for steps in ([1, 2, 3], [3, 4]):
        tracker = WandbTracker(dir=str(run_dir), **SETTINGS, mode="offline", say=messages.append)
        for step in steps:
            tracker.log({"step": step, "train_loss": float(step)})
        tracker.close(143)
    (first, second) = (read_back(directory) for directory in offline_runs(run_dir))
    assert [row["_step"] for row in first[0]] == [1, 2, 3]
    assert [row["_step"] for row in second[0]] == [3, 4]
    assert first[1]["run_id"] == second[1]["run_id"]
    assert sorted(map(Path, glob.glob(shlex.split(messages[1])[-1]))) == offline_runs(run_dir)  # sent with one command
    assert first[2] == 143


def test_an_evaluation_during_which_an_online_run_was_stopped_is_logged_after_it(run_dir, monkeypatch):
    """After the row of step 100, wandb asks for step 101."""
    logged, asked = [], []
    run = SimpleNamespace(url="", resumed=True, step=101, log=lambda row, step: logged.append((step, sorted(row))))
    monkeypatch.setattr("wandb.init", lambda **options: asked.append((options["id"], options["resume"])) or run)
    monkeypatch.setattr(tracking_wandb, "choose_mode", lambda mode: ("online", ""))
    tracker = WandbTracker(**SETTINGS, dir=run_dir)
    tracker.log({"step": 90, "train_loss": 2.0})
    tracker.log({"step": 100, "train_loss": 1.0})
    tracker.log({"step": 100, "valid_ppl": 9.0})
    tracker.log({"step": 101, "train_loss": 1.0})
    assert asked == [("a1b2c3d4", "allow")]  # without "resume" wandb would overwrite the run that has this id
    keys = ["step", "tokens"]
    assert logged == [(101, [*keys, "valid_ppl"]), (101, [*keys, "train_loss"])]


@pytest.mark.full("a process that is killed while it waits")
def test_a_kill_loses_about_a_second(run_dir):
    code = """
        import json, os, signal, sys, time
        from pathlib import Path
        from fourierformer.tracking.wandb import WandbTracker
        tracker = WandbTracker(dir=sys.argv[1], **json.loads(sys.argv[2]), samples=("tokens", int), mode="offline")
        for step in range(10):
            tracker.log({"step": step, "train_loss": 1.0})
        (log,) = Path(sys.argv[1]).rglob("*.wandb")
        until = time.monotonic() + 12  # well over the second we ask for, under the 15 that wandb would wait
        while log.read_bytes().count(b"train_loss") < 9 and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    plain = json.dumps({key: value for key, value in SETTINGS.items() if key != "samples"})
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), run_dir, plain], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    history, _, _ = read_back(offline_runs(run_dir)[0])
    assert len(history) >= 9  # the newest row stays open until the next step begins


def test_disabled_writes_nothing(run_dir):
    tracker = WandbTracker(dir=str(run_dir), **SETTINGS, mode="disabled")
    tracker.log({"step": 1})
    tracker.summary({"best/valid_ppl": 1.0})
    tracker.close(0)
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("variable", [("WANDB_MODE", "disabled"), ("WANDB_DISABLED", "true")])
def test_auto_respects_the_switch_off(monkeypatch, variable):
    monkeypatch.setenv(*variable)
    assert choose_mode("auto")[0] == "disabled"


def test_auto_respects_wandb_mode_offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert choose_mode("auto") == ("offline", "WANDB_MODE=offline")


def test_not_logged_in_is_offline_and_reports_it():
    assert choose_mode("auto") == ("offline", "not logged in: wandb login")
    assert choose_mode("online")[0] == "offline"  # never a prompt that waits for a key


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("login", ["key", "netrc"])
def test_logged_in_but_no_network_is_offline_within_seconds(monkeypatch, run_dir, tmp_path, login):
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed_port()}")
    if login == "key":
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    else:
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login user password {'0' * 40}\n")
        (tmp_path / "netrc").chmod(0o600)
    assert choose_mode("auto") == ("offline", "127.0.0.1 cannot be reached")


def test_logged_in_and_reachable_is_online(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        assert choose_mode("auto") == ("online", "")


def test_behind_a_proxy_the_connection_goes_to_the_proxy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.invalid")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        assert choose_mode("auto") == ("online", "")


def test_a_name_that_never_resolves_does_not_hold_the_start(monkeypatch):
    never = threading.Event()

    def create_connection(address, timeout):
        never.wait(60)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    assert not reachable("host.invalid", 443, seconds=0.1)
    never.set()


def test_an_online_start_that_fails_falls_back_to_offline(monkeypatch, run_dir):
    import wandb

    real = wandb.init

    def init(*, mode, **keywords):
        if mode == "online":
            raise wandb.errors.CommError("no answer\nsecond line")
        return real(mode=mode, **keywords)

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(tracking_wandb, "choose_mode", lambda mode: ("online", ""))
    messages = []
    tracker = WandbTracker(dir=str(run_dir), **SETTINGS, say=messages.append)
    tracker.log({"step": 1, "train_loss": 1.0})
    tracker.close(0)
    assert len(messages) == 1
    assert "offline (CommError: no answer); send it later with: wandb sync" in messages[0]
    assert len(offline_runs(run_dir)) == 1


def test_no_wandb_at_all_is_one_line(monkeypatch, run_dir):
    monkeypatch.setitem(sys.modules, "wandb", None)
    messages = []
    trackers = build_trackers(run_dir / "metrics.jsonl", wandb={"dir": str(run_dir), **SETTINGS}, say=messages.append)
    trackers.log({"step": 1})
    trackers.summary({"best/valid_ppl": 1.0})
    trackers.close(0)
    assert len(messages) == 1
    assert "wandb is off for this run" in messages[0]
    assert read_metrics(run_dir / "metrics.jsonl") == [{"step": 1}]


def artifacts(directory):
    records = [json.loads(line) for line in inspect(directory).splitlines()]
    return [record["artifact"] for record in records if record["type"] == "artifact"]


@pytest.mark.parametrize(
    ("code", "count"), [(0, 1), pytest.param(143, 0, marks=pytest.mark.full("one that is not finished has none"))]
)
def test_the_artifact_is_the_folder_of_a_finished_run(run_dir, tmp_path, code, count):
    folder = tmp_path / "step_00000004"
    folder.mkdir()
    (folder / "state.pt").write_bytes(b"weights")
    keywords = {"artifact": lambda: folder, "mode": "offline", "say": lambda message: None}
    WandbTracker(dir=str(run_dir), **SETTINGS, **keywords).close(code)
    (directory,) = offline_runs(run_dir)
    added = artifacts(directory)
    assert [artifact["name"] for artifact in added] == ["best-a1b2c3d4"] * count
    files = [entry for artifact in added for entry in artifact["manifest"]["contents"]]
    assert [(entry["path"], entry["local_path"]) for entry in files] == [("state.pt", str(folder / "state.pt"))] * count


def test_an_online_run_ends_when_its_checkpoint_is_uploaded(run_dir, tmp_path, monkeypatch):
    """`finish` gives up after a minute."""
    done, logged = [], SimpleNamespace(wait=lambda: done.append("uploaded"))
    run = SimpleNamespace(url="", resumed=False, id="a1b2c3d4", offline=False, log_artifact=lambda artifact: logged)
    run.finish = lambda exit_code: done.append(f"finished with {exit_code}")
    monkeypatch.setattr("wandb.init", lambda **_: run)
    monkeypatch.setattr(tracking_wandb, "choose_mode", lambda mode: ("online", ""))
    folder = tmp_path / "step_00000004"
    folder.mkdir()
    WandbTracker(**SETTINGS, dir=run_dir, artifact=lambda: folder).close(0)
    assert done == ["uploaded", "finished with 0"]


def test_a_run_has_the_tags_of_its_config_and_its_best_checkpoint(tmp_path):
    options = ("tracker.mode=offline", "tracker.tags=[first,second]", "tracker.artifact=true")
    assert train_lm(*MODEL, "tracker=wandb", *options, f"run_dir={tmp_path / 'run'}") == 0
    (directory,) = offline_runs(tmp_path / "run")
    _, run, _ = read_back(directory)
    assert run["tags"] == ["smoke", "builtin_text", "softmax", "first", "second"]
    assert run["run_id"] == (tmp_path / "run/wandb_id").read_text().strip()  # so that a resumed run has it again
    (artifact,) = artifacts(directory)
    files = {Path(entry["local_path"]) for entry in artifact["manifest"]["contents"]}
    assert files == set((tmp_path / "run/checkpoints/step_00000004").iterdir())
