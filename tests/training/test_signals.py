"""Real processes, real signals, real exit codes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from fourierformer.errors import Interrupted
from fourierformer.training.signals import SIGNALS, StopSignal, exit_code

PROGRAM = """
import sys, time
from fourierformer.errors import Interrupted
from fourierformer.training.signals import StopSignal, exit_code
try:
    with StopSignal() as stop:
        print("ready", flush=True)
        for _ in range(3000):
            {poll}
            time.sleep(0.01)
except Interrupted as interrupted:
    print("saved", flush=True)
    sys.exit(exit_code(interrupted.signal_number))
"""


def start(poll="stop.poll()"):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(poll=poll)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_the_first_signal_saves(number, code):
    process = start()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out == "saved\n"
    assert err.strip().splitlines() == [
        f"{number.name}: stopping after this micro-step, saving; press Ctrl-C again to abort at once"
    ]
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
