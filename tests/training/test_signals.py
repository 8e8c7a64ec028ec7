"""Real processes, real signals, real exit codes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from fourierformer.errors import Interrupted
from fourierformer.processes import Processes
from fourierformer.training.signals import SAME_CTRL_C, SIGNALS, StopSignal, exit_code, forget_signal, note

PROGRAM = """
import sys, time
from fourierformer.errors import Interrupted
from fourierformer.processes import Processes
from fourierformer.training.signals import StopSignal, exit_code
try:
    with StopSignal({processes}) as stop:
        print("ready", flush=True)
        for _ in range(3000):
            {poll}
            time.sleep(0.01)
except Interrupted as interrupted:
    print("saved", flush=True)
    sys.exit(exit_code(interrupted.signal_number))
"""


def start(poll="stop.poll()", processes="", hang_up=signal.SIG_DFL):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(poll=poll, processes=processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up),  # whatever the tests themselves run under
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 143)],
)
def test_the_first_signal_saves(number, code):
    process = start()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == "saved\n"
    again = "press Ctrl-C again to abort" if number == signal.SIGINT else "SIGINT (Ctrl-C) aborts"  # who has pressed it
    assert err.strip().splitlines() == [f"{number.name}: stopping after this micro-step, saving; {again} at once"]
    assert process.returncode == code == exit_code(number)


def wait_for_line(process):
    assert process.stderr.readline() == "\n"
    assert "stopping" in process.stderr.readline()


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_a_signal_aborts_at_once(first):
    process = start(poll="pass")  # a micro-step that takes for ever
    process.send_signal(first)
    wait_for_line(process)
    process.send_signal(signal.SIGTERM)  # a scheduler repeating itself is no reason to lose the checkpoint
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert "aborted" in err
    assert process.returncode == 130


def test_under_nohup_a_closed_terminal_stops_nothing():
    process = start(hang_up=signal.SIG_IGN)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert err.strip().startswith("SIGTERM: stopping")


def test_previous_handlers_come_back():
    received = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        others = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            with pytest.raises(Interrupted):
                stop.poll()
            with pytest.raises(Interrupted):
                stop.poll()  # still: evaluation inside a step and the step itself both have to end
        assert received == []
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == others
        os.kill(os.getpid(), signal.SIGUSR1)
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_a_signal_after_the_last_poll_is_not_lost():
    def work(error=None):
        with StopSignal():
            os.kill(os.getpid(), signal.SIGTERM)
            if error:
                raise error

    with pytest.raises(Interrupted):
        work()
    with pytest.raises(KeyError):  # but it does not hide an error either
        work(KeyError())


def test_a_signal_that_was_noted_before_stops_the_work_at_its_first_poll(capfd):
    """As one that came while the processes of the run were waiting for each other."""
    note(signal.SIGTERM)
    try:
        with pytest.raises(Interrupted, match="SIGTERM"), StopSignal() as stop:
            stop.poll()
    finally:
        forget_signal()
    with StopSignal() as stop:
        stop.poll()
    assert capfd.readouterr().err.strip() == "SIGTERM: stopping; SIGINT (Ctrl-C) aborts at once"


def test_no_job_loop_can_take_it_for_a_failed_job():
    assert not issubclass(Interrupted, Exception)


def test_outside_the_main_thread_it_only_polls():
    handlers = [signal.getsignal(number) for number in SIGNALS]
    seen = []

    def work():
        with StopSignal() as stop:
            seen.append([signal.getsignal(number) for number in SIGNALS])
            stop.poll()
            seen.append("polled")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == [handlers, "polled"]
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


# -- several processes ----------------------------------------------------------------------------------------------


def test_a_ctrl_c_that_a_launcher_repeats_is_one_ctrl_c():
    process = start(poll="pass", processes="Processes(rank=0, world=2)")
    process.send_signal(signal.SIGINT)
    wait_for_line(process)
    process.send_signal(signal.SIGINT)
    time.sleep(SAME_CTRL_C + 0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert err.strip() == "aborted"
    assert process.returncode == 130


class Together(Processes):
    """Two processes, of which the other one has received `others`; counts how often it was asked."""

    others, asked = 0, 0

    def highest(self, number):
        Together.asked += 1
        return max(number, self.others)


@pytest.mark.parametrize(("rank", "printed"), [(0, "\nSIGTERM: stopping after this micro-step, saving\n"), (1, "")])
def test_all_stop_for_a_signal_of_one(rank, printed, capfd, monkeypatch):
    monkeypatch.setattr(Together, "others", 0)
    with StopSignal(Together(rank, 2)) as stop:
        stop.poll()
        monkeypatch.setattr(Together, "others", signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            stop.poll()
        asked = Together.asked
        with pytest.raises(Interrupted, match="SIGTERM"):
            stop.poll()
    assert Together.asked == asked  # whoever is on the way out asks nobody
    assert capfd.readouterr().err == printed


def test_a_signal_during_the_question_waits_for_the_next():
    """The others got the answer "none", so this process may not stop alone."""

    class Late(Processes):
        def highest(self, number):
            os.kill(os.getpid(), signal.SIGTERM)
            return number

    with StopSignal(Late(rank=1, world=2)) as stop:
        stop.poll()
        with pytest.raises(Interrupted):
            stop.poll()


TOGETHER = """
import json, os, sys, time
from fourierformer.errors import Interrupted
from fourierformer.processes import join_processes
from fourierformer.training.signals import StopSignal, exit_code
polls = 0
with join_processes("cpu") as processes:
    try:
        with StopSignal(processes) as stop:
            processes.on_first(lambda: print("ready", flush=True))
            for _ in range(3000):
                polls += 1
                stop.poll()
                time.sleep(0.02 * processes.rank)  # one is slower than the other
    except Interrupted as interrupted:
        result = {"rank": processes.rank, "polls": polls, "by": interrupted.signal_number}
        os.write(1, (json.dumps(result) + "\\n").encode())  # one write: print may mix the lines of two processes
        sys.exit(exit_code(interrupted.signal_number))
"""


def start_two(program):
    program.write_text(TOGETHER)
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(torchrun):
    """Process ids by rank: torchrun's children, recognised by their environment."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children}
    return {rank: pid for rank in (0, 1) for pid, values in environments.items() if b"RANK=%d" % rank in values}


@pytest.mark.full("two processes under torchrun")
@pytest.mark.parametrize("receiver", ["torchrun", "worker 1"])
def test_two_processes_stop_at_the_same_poll(tmp_path, receiver):
    torchrun = start_two(tmp_path / "program.py")
    try:
        assert torchrun.stdout.readline() == "ready\n"
        time.sleep(0.3)
        os.kill(torchrun.pid if receiver == "torchrun" else workers(torchrun)[1], signal.SIGTERM)
        out, err = torchrun.communicate(timeout=30)
    finally:
        torchrun.terminate()  # not kill: its workers are in sessions of their own, and only torchrun ends them
        torchrun.communicate()
    results = sorted((json.loads(line) for line in out.splitlines()), key=lambda result: result["rank"])
    assert [result["rank"] for result in results] == [0, 1]
    assert all(result["by"] == signal.SIGTERM for result in results)
    assert results[0]["polls"] == results[1]["polls"] > 1
    assert err.count("stopping after this micro-step") == 1
    assert torchrun.returncode == 1  # torchrun's own code for everything that is not success
