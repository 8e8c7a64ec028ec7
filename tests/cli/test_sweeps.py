"""Sweeps under every launcher: the result of each job is reported, and one table at the end."""

import errno
import json
import multiprocessing
import os
import re
import shlex
import signal
import socket
import time

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from fourierformer import attention
from fourierformer.errors import Interrupted
from fourierformer.runs.sweep import StopSweep, SweepRecord, end_with_parent
from fourierformer.training.signals import SIGNALS
from tests.helpers.command_line import CONFIGS, MODEL, only_run, rows, start, status, train_lm, train_vit


def runs_of(root) -> dict[str, str]:
    """attention and seed -> state, from status.json."""
    runs = {path.parent for path in root.rglob("config.yaml") if ".sweeps" not in path.parts}
    return {"-".join(run.name.split("-")[1:3]): status(run)["state"] for run in runs}


def check_table(printed: str, root) -> None:
    assert printed.count("report: ") == 1
    assert f"report: {root}/smoke/report.html" in printed
    for part in ("softmax", "gaussian", "state", "done"):
        assert part in printed
    assert (root / "smoke" / "report.html").exists()


def test_one_bad_job_neither_stops_nor_hides_the_others(smoke, tmp_path, capfd):
    sweep = ("-m", *smoke, "attention=softmax,gaussian", "seed=1,abc", f"runs_root={tmp_path}")
    assert train_lm(*sweep) == 2
    printed, error = capfd.readouterr()
    assert runs_of(tmp_path) == {"softmax-s1": "completed", "gaussian-s1": "completed"}
    check_table(printed, tmp_path)
    assert "error: [2/4 softmax seed=abc] seed='abc': expected a whole number\n" in error
    assert "error: [4/4 gaussian seed=abc] the same error\n" in error
    assert "\n[2/4 softmax seed=abc] and 1 more: seed='abc': expected a whole number\n" in error
    assert "2 of 4 done, 2 failed" in error
    assert printed.partition("\n\n")[0].count("counted as <unk>") <= 1  # once, not for every job
    assert re.search(r"^\[3/4 gaussian seed=1\] step .* loss", printed, flags=re.M)
    assert all(line.startswith(("[", "loading", "note: ")) for line in printed.partition("\n\n")[0].splitlines())
    assert "Traceback" not in error

    assert train_lm(*(a.replace("1,abc", "1") for a in sweep)) == 0
    printed, error = capfd.readouterr()
    assert printed.count("already done") == 2
    assert error == ""


def test_shuffled_jobs_have_the_names_of_their_own_values(smoke, tmp_path, capfd):
    """Hydra shuffles the values once more for the jobs."""
    seeds = "seed=shuffle(1,2,3,4,5,6)"
    assert train_lm("-m", *smoke, seeds, f"runs_root={tmp_path}", "dry_run=true") == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if f"{tmp_path}/smoke" in line]
    found = [re.match(r"\[(\d)/6 seed=(\d)\] .*-s(\d)-", line).groups() for line in lines]
    assert [number for number, *_ in found] == list("123456")
    assert all(named == seed for _, named, seed in found)


def test_a_crash_in_the_middle(smoke, tmp_path, monkeypatch, capfd):
    from fourierformer.tasks.language_objective import LanguageObjective

    whole = LanguageObjective.evaluate

    def sometimes(self, model, *more):
        if type(model.layers[0].attention).__name__ == "Gaussian":
            raise ZeroDivisionError("burst pipe")
        return whole(self, model, *more)

    monkeypatch.setattr(LanguageObjective, "evaluate", sometimes)
    assert train_lm("-m", *smoke, "attention=softmax,gaussian,fourier", f"runs_root={tmp_path}") == 1
    printed, error = capfd.readouterr()
    assert runs_of(tmp_path) == {"softmax-s1": "completed", "gaussian-s1": "failed", "fourier-s1": "completed"}
    assert "failed" in printed
    assert "[2/3 gaussian] ZeroDivisionError: burst pipe" in error


def test_a_sweep_whose_record_cannot_be_written_does_not_end_with_0(smoke, tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fourierformer.runs.sweep.atomic_write_text", full)
    assert train_lm("-m", *smoke, "seed=abc,1", "trainer.steps=1", f"runs_root={tmp_path}") == 2
    error = capfd.readouterr().err
    assert "its result (exit code 2) could not be written to" in error
    assert "No space left on device" in error
    assert "Traceback" not in error
    assert runs_of(tmp_path) == {"softmax-s1": "completed"}, "the other job is done all the same"


def test_a_config_is_composed_once(tmp_path, monkeypatch, capfd):
    """Hydra does it a second time to read `hydra.mode`."""
    load, calls = ConfigLoaderImpl.load_configuration, []
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", lambda *a, **k: calls.append(k) or load(*a, **k))
    assert train_lm("seed=-1", f"runs_root={tmp_path}") == 2
    assert len(calls) == 1
    assert train_lm("hydra.mode=MULTIRUN", "seed=-1,-2", f"runs_root={tmp_path}") == 2
    assert "0 of 2 done, 2 failed" in capfd.readouterr().err


def test_a_sweep_over_an_empty_range_is_refused(tmp_path, capfd):
    assert train_lm("-m", "seed=range(1,1)", f"runs_root={tmp_path}") == 2
    assert "error: this sweep has no jobs: a range() is empty, or a glob() matches no name" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-m", "attention=glob(zzz*)"), "a glob() matches no name"),
        (("-m", "seed=interval(1,3)"), "a sweep has no interval(): list the values"),
        (("experiment_name=" + "x" * 300,), "File name too long). Choose a shorter experiment_name="),
    ],
)
def test_what_no_run_can_have_is_refused_with_a_way_out(words, message, tmp_path, capfd):
    assert train_lm(*words, f"runs_root={tmp_path}", "trainer.steps=1") == 2
    assert message in capfd.readouterr().err


def test_the_command_of_a_job_has_the_folder_of_configs_of_its_sweep(smoke, tmp_path):
    """Without it, the command in meta.json and on the page repeats nothing."""
    (tmp_path / "configs/attention").mkdir(parents=True)
    (tmp_path / "configs/attention/outside.yaml").write_text(
        "# a variant\nname: gaussian\nbandwidth: null\nnormalize_keys: true\n"
    )
    sweep = (
        f"--config-dir={tmp_path / 'configs'}",
        "-m",
        *smoke,
        "attention=outside",
        f"runs_root={tmp_path / 'runs'}",
    )
    assert train_lm(*sweep) == 0
    command = json.loads((only_run(tmp_path / "runs") / "meta.json").read_text())["command"]
    assert shlex.split(command)[2] == f"--config-dir={tmp_path / 'configs'}"
    assert train_lm(*shlex.split(command)[2:], "dry_run=true") == 0


def test_a_wrong_choice_is_refused_before_the_first_job(smoke, tmp_path, capfd):
    assert train_lm("-m", *smoke, "attention=softmax,fourierr", f"runs_root={tmp_path / 'runs'}") == 2
    assert "error: attention=fourierr: no such attention (did you mean 'fourier'?)" in capfd.readouterr().err
    assert not list(tmp_path.rglob("config.yaml"))


def test_a_sweep_of_the_other_program_ends_with_its_first_job(tmp_path, capfd):
    assert train_lm("-m", "experiment=builtin_vit", "seed=1,2,3", f"runs_root={tmp_path}") == 2
    error = capfd.readouterr().err
    assert error.count("error:") == 1
    assert "0 of 3 done, 1 failed, 2 not begun" in error


@pytest.mark.full("trains every attention")
@pytest.mark.parametrize(("train", "debug", "causal"), [(train_lm, "smoke", True), (train_vit, "smoke_vit", False)])
def test_every_attention_trains_or_is_refused_with_its_reason(train, debug, causal, tmp_path, capfd):
    assert train("-m", "attention=glob(*)", f"debug={debug}", f"runs_root={tmp_path}") == 2
    able = attention.available(causal=causal, grid=not causal)
    assert runs_of(tmp_path) == {f"{name}-s1": "completed" for name in able}
    error = capfd.readouterr().err
    assert "Traceback" not in error
    for name in set(attention.available()) - set(able):
        assert re.search(rf"^\[\d+/\d+ {name}\] attention '{name}' (cannot be|needs)", error, flags=re.M)


@pytest.mark.full("sweeps in processes of their own")
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_jobs_in_other_processes(smoke, tmp_path, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    choices = ("attention=softmax,gaussian", f"hydra/launcher={launcher}")
    process = start("-m", *smoke, *choices, "seed=1", f"runs_root={tmp_path}")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert runs_of(tmp_path) == {"softmax-s1": "completed", "gaussian-s1": "completed"}
    check_table(output, tmp_path)
    if launcher == "joblib":  # submitit's jobs write to files
        assert re.search(r"^\[1/2 softmax\] step .* loss", output, flags=re.M)
        assert re.search(r"^\[2/2 gaussian\] step .* loss", output, flags=re.M)
    for run in tmp_path.glob("smoke/*-s1-*"):  # the command of this run alone, not of the worker or of the sweep
        command = json.loads((run / "meta.json").read_text())["command"]
        assert re.match(r"python \S*train_lm.py debug=smoke ", command)
        assert f"attention={run.name.split('-')[1]} " in command


def stopped_while_two_train(*sweep: str) -> str:
    """The output of a sweep that gets SIGTERM once its first two jobs have logged steps."""
    process = start(*sweep)
    training, seen = set(), ""
    for line in process.stdout:
        seen += line
        training |= set(re.findall(r"^\[([12])/3 seed=\d\] step .* loss", line))
        if len(training) == 2:
            break
    process.send_signal(signal.SIGTERM)
    seen += process.communicate(timeout=200)[0]
    assert process.returncode == 143, seen
    return seen


def saved_step(root, seed: int) -> int:
    """Where a run was stopped; its log has every row up to there, once."""
    (run,) = root.glob(f"smoke/*-s{seed}-*")
    step = status(run)["step"]
    assert [row["step"] for row in rows(run) if "train_loss" in row] == list(range(50, step + 1, 50))
    return step


@pytest.mark.full("sweeps in processes of their own")
def test_a_stop_ends_the_sweep_and_the_same_command_goes_on(smoke, tmp_path):
    """Jobs in other processes get the signal and save; the others do not begin."""
    # no job comes near its end, however late the other one begins
    length = ("trainer.steps=10000000", "trainer.eval_every=1000000", "trainer.save_every=1000000")
    processes = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    sweep = ("-m", *smoke, *length, "trainer.log_every=50", "seed=1,2,3", *processes, f"runs_root={tmp_path}")
    output = stopped_while_two_train(*sweep)
    assert runs_of(tmp_path) == {"softmax-s1": "interrupted", "softmax-s2": "interrupted"}
    assert "[1/3 seed=1] and 1 more: stopped by SIGTERM" in output
    assert "0 of 3 done, 2 stopped, 1 not begun" in output

    saved = {seed: saved_step(tmp_path, seed) for seed in (1, 2)}
    output = stopped_while_two_train(*sweep)
    for seed, step in saved.items():
        assert f"[{seed}/3 seed={seed}] resumes " in output
        assert f" at step {step:,} of" in output
        assert saved_step(tmp_path, seed) > step


def test_a_stop_reaches_the_unfinished_jobs_of_this_machine_and_nobody_else(tmp_path, monkeypatch):
    """Numbers of processes are those of one machine, and that of a finished job may be another process's by now."""
    here, sent = socket.gethostname(), []
    jobs = [
        {"pid": 101, "host": here},
        {"pid": 102, "host": "another machine"},
        {"pid": 103, "host": here, "exit_code": 0},
        {"pid": os.getpid(), "host": here},
        {"pid": -1, "host": here},
        {"pid": 106, "host": here},
    ]
    for number, job in enumerate(jobs):
        (tmp_path / f"{number:05d}.json").write_text(json.dumps({"number": number} | job))
    monkeypatch.setattr(SweepRecord, "current", tmp_path)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with StopSweep():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # schedulers send it several times
            assert sent == [(101, signal.SIGTERM), (106, signal.SIGTERM)]
            assert (tmp_path / "stop").exists()
            with pytest.raises(Interrupted):
                signal.raise_signal(signal.SIGINT)
            assert sent[2:] == [(101, signal.SIGKILL), (106, signal.SIGKILL)]
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_a_job_of_a_stopped_sweep_does_not_begin(smoke, tmp_path, capfd):
    """A worker of joblib, or Slurm, starts it all the same."""
    (tmp_path / "record").mkdir()
    (tmp_path / "record/stop").touch()
    train_lm("-m", *smoke, "seed=1,2", f"runs_root={tmp_path / 'runs'}", f"hydra.sweep.dir={tmp_path / 'record'}")
    assert not list(tmp_path.rglob("config.yaml"))
    assert "0 of 2 done, 2 not begun" in capfd.readouterr().err


def _worker(sender) -> None:
    end_with_parent()
    sender.send("works")
    time.sleep(600)


def _parent(sender) -> None:
    multiprocessing.get_context("fork").Process(target=_worker, args=(sender,)).start()
    time.sleep(600)


def test_a_worker_whose_parent_was_killed_ends():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(target=_parent, args=(sender,))
    parent.start()
    sender.close()
    assert receiver.recv() == "works"
    parent.kill()
    assert receiver.poll(60), "the worker holds its end of the pipe"
    with pytest.raises(EOFError):
        receiver.recv()


@pytest.mark.full("a sweep in processes of its own")
def test_a_sweep_whose_process_was_killed_leaves_no_workers_and_resumes(smoke, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = ("-m", *smoke, "trainer.steps=10000000", "trainer.log_every=50", "seed=1,2", f"runs_root={tmp_path}")
    process = start(*sweep, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    seen = ""
    while len(set(re.findall(r"^\[([12])/2 seed=\d\] step .* loss", seen, flags=re.M))) < 2:
        seen += process.stdout.readline()
    process.kill()
    process.communicate(timeout=120)  # until the last worker has closed the pipe
    assert runs_of(tmp_path) == {"softmax-s1": "interrupted", "softmax-s2": "interrupted"}
    assert all(saved_step(tmp_path, seed) for seed in (1, 2))


@pytest.mark.full("a process that trains")
def test_ctrl_c_ends_a_sweep_in_one_process(smoke, tmp_path):
    sweep = ("-m", *smoke, "trainer.steps=10000000", "trainer.log_every=50", "seed=1,2", f"runs_root={tmp_path}")
    process = start(*sweep)
    for line in process.stdout:
        if "loss" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert runs_of(tmp_path) == {"softmax-s1": "interrupted"}
    assert "0 of 2 done, 1 stopped, 1 not begun" in output


def test_slurm_is_configured_to_resume():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        launcher = compose("train_lm", ["hydra/launcher=submitit_slurm"], return_hydra_config=True).hydra.launcher
    assert launcher["_target_"].endswith("SlurmLauncher")
    assert launcher.signal_delay_s == 120
    assert launcher.max_num_timeout > 0  # a job at its time limit is queued again, and resumes


def test_slurm_without_slurm_is_one_line(tmp_path, capfd, monkeypatch):
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun here
    assert train_lm("-m", *MODEL, "seed=1,2", "hydra/launcher=submitit_slurm", f"runs_root={tmp_path}") == 2
    assert capfd.readouterr().err == (
        "error: hydra/launcher=submitit_slurm: no Slurm here (srun is missing). Use joblib instead\n"
    )
