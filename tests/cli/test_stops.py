"""Signals and kills on real processes: only the steps since the last save are lost, and the same command
continues to the same numbers."""

import hashlib
import os
import pkgutil
import signal

import pytest
import torch

from fourierformer.training.signals import exit_code, how_to_abort, noted_signal
from tests.helpers.command_line import REPOSITORY, only_run, rows, start, status, train_lm

STEPS = 60
LONG = (f"trainer.steps={STEPS}", "trainer.eval_every=15", "trainer.save_every=15", "trainer.log_every=5")

# train_lm.py with steps of a tenth of a second, long enough to be caught in the middle on any machine
SLOW = """
import time
from fourierformer.runs.launch import launch
from fourierformer.tasks.language_objective import LanguageObjective

compute = LanguageObjective.loss

def loss(*arguments):
    time.sleep(0.1)
    return compute(*arguments)

LanguageObjective.loss = loss
launch("train_lm")
"""


@pytest.fixture(scope="module")
def uninterrupted(smoke, tmp_path_factory):
    root = tmp_path_factory.mktemp("uninterrupted")
    assert train_lm(*smoke, *LONG, f"runs_root={root}") == 0
    return only_run(root)


def program(folder, text: str):
    """The name of a script with this text, as `start` takes it."""
    (folder / "program.py").write_text(text)
    return folder / "program"


def weights_hash(run) -> str:
    newest = sorted((run / "checkpoints").glob("step_*"))[-1]
    state = torch.load(newest / "state.pt", weights_only=True)
    parts = [value.numpy().tobytes() for _, value in sorted(state["model"].items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.fixture(autouse=True)
def hangups_are_heard():
    """Under nohup they are ignored, here and in whatever is started from here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def after(process, text: str) -> str:
    """Reads the output up to a line with `text`."""
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"ended ({process.wait()}) without {text!r}:\n{seen}")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        *(
            pytest.param(*case, marks=pytest.mark.full("a training begun twice, once more"))
            for case in ((signal.SIGINT, 130), (signal.SIGUSR1, 143), (signal.SIGHUP, 143))
        ),
    ],
)
def test_a_stop_saves_and_the_same_command_resumes(smoke, uninterrupted, tmp_path, number, code):
    process = start(*smoke, *LONG, f"runs_root={tmp_path}", script=program(tmp_path, SLOW))
    after(process, "loss")
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "Traceback" not in output
    run = only_run(tmp_path)
    assert status(run)["state"] == "interrupted"
    saved = [int(path.name.split("_")[1]) for path in (run / "checkpoints").iterdir()]
    assert saved == [status(run)["step"]]  # one checkpoint, of the very last step
    assert f"stopped at step {saved[0]}; the same command resumes" in output
    assert 0 < saved[0] < STEPS

    assert train_lm(*smoke, *LONG, f"runs_root={tmp_path}") == 0
    assert rows(run) == rows(uninterrupted)
    assert weights_hash(run) == weights_hash(uninterrupted)
    assert status(run)["state"] == "completed"


ENDLESS = """
import time
from fourierformer.runs.launch import launch
from fourierformer.tasks.language_objective import LanguageObjective

def loss(*_):
    print("in a step", flush=True)
    time.sleep(1000)

LanguageObjective.loss = loss
launch("train_lm")
"""


@pytest.mark.full("a process that trains")
def test_a_second_ctrl_c_aborts_at_once(smoke, tmp_path):
    # a first Ctrl-C waits for the end of a step
    process = start(*smoke, f"runs_root={tmp_path}", script=program(tmp_path, ENDLESS))
    after(process, "in a step")
    process.send_signal(signal.SIGINT)
    after(process, "press Ctrl-C again")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert "aborted" in output
    assert not list(tmp_path.rglob("step_*"))


@pytest.mark.full("a training killed many times")
def test_killed_again_and_again_it_still_ends_with_the_same_weights(smoke, uninterrupted, tmp_path):
    for line in ("loss", f" 20/{STEPS}"):  # before the first save and after it
        process = start(*smoke, *LONG, f"runs_root={tmp_path}", script=program(tmp_path, SLOW))
        after(process, line)
        process.kill()
        process.communicate(timeout=60)
    run = only_run(tmp_path)
    assert status(run)["state"] == "running"  # nobody could say otherwise
    assert train_lm(*smoke, *LONG, f"runs_root={tmp_path}") == 0
    assert rows(run) == rows(uninterrupted)
    assert weights_hash(run) == weights_hash(uninterrupted)


@pytest.mark.full("a process that trains")
def test_from_another_directory_nothing_but_runs_appears(smoke, tmp_path):
    process = start(*smoke, "trainer.steps=1", cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


IMPORTS = """
import importlib.abc, os, sys
from pathlib import Path

class Stop(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Stop())
exec(compile(Path("{script}").read_text(), "{script}", "exec"))
"""


@pytest.mark.full("a process for each module; the test below has later moments")
@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("torch.nn.functional", signal.SIGTERM),
        *((module, signal.SIGINT) for module in ("hydra.main", "numpy", "torch", "fourierformer.runs.train")),
    ],
)
def test_a_signal_during_an_import_ends_it_before_anything_trains(smoke, tmp_path, module, number):
    text = IMPORTS.format(module=module, number=int(number), script=REPOSITORY / "train_lm.py")
    process = start(*smoke, f"runs_root={tmp_path}", script=program(tmp_path, text))
    output, _ = process.communicate(timeout=180)
    assert process.returncode == exit_code(number), output
    assert "Traceback" not in output
    assert f"{number.name}: stopping" in output
    assert output.endswith("stopped before training began; nothing is lost\n")
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("hydra._internal.config_loader_impl.ConfigLoaderImpl.load_configuration", signal.SIGINT),
        ("fourierformer.runs.run.read_command", signal.SIGTERM),
        ("fourierformer.runs.run.check_mechanism", signal.SIGINT),
        ("fourierformer.runs.parts.check_device", signal.SIGUSR1),
    ],
)
def test_a_signal_before_the_training_is_a_stop_and_no_error(smoke, tmp_path, monkeypatch, capfd, moment, number):
    """Hydra and OmegaConf turn whatever is raised in them into errors of their own."""
    owner, _, name = moment.rpartition(".")
    owner = pkgutil.resolve_name(owner)
    original = getattr(owner, name)

    def interrupted(*arguments, **keywords):
        if noted_signal() is None:  # a second Ctrl-C would abort
            os.kill(os.getpid(), number)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, interrupted)
    assert train_lm(*smoke, f"runs_root={tmp_path}") == exit_code(number)
    assert capfd.readouterr().err.split("\n")[1:] == [
        f"{number.name}: stopping; {how_to_abort(number)}",
        "stopped before training began; nothing is lost",
        "",
    ]
    assert not list(tmp_path.rglob("metrics.jsonl"))
    monkeypatch.undo()
    assert train_lm(*smoke, f"runs_root={tmp_path}") == 0, "the signal is forgotten"


def test_a_signal_before_a_sweep_begins_ends_all_of_it(smoke, tmp_path, monkeypatch, capfd):
    from fourierformer.runs import run

    read = run.read_command

    def interrupted(config):
        os.kill(os.getpid(), signal.SIGTERM)
        return read(config)

    monkeypatch.setattr(run, "read_command", interrupted)
    assert train_lm("-m", *smoke, "seed=1,2,3", f"runs_root={tmp_path}") == 143
    assert "0 of 3 done, 1 stopped, 2 not begun" in capfd.readouterr().err
    assert not list(tmp_path.rglob("metrics.jsonl"))
