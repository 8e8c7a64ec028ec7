"""The output on the console: exact words in plain output, and the picture on a real terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import textwrap

import pytest

from fourierformer.tasks import task_named
from fourierformer.tracking import console as console_module
from fourierformer.tracking.console import ConsoleTracker


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so."""
    now = [1000.0]
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now[0])
    return now


TEXT = {"task": task_named("language"), "metric": "ppl"}
IMAGES = {"task": task_named("vision"), "metric": "top1"}


def plain(steps=600, samples_per_step=8192, kind=TEXT, **further):
    stream = io.StringIO()
    return ConsoleTracker(steps, samples_per_step, "fourier s1", stream=stream, **kind, **further), stream


def test_a_training_line():
    tracker, stream = plain()
    tracker.log({"step": 120, "train_loss": 5.123, "lr": 9.1e-4, "grad_norm": 0.5, "tokens_per_s": 8200.0})
    # exp(5.123) = 167.8; (600 - 120) * 8192 / 8200 = 479.5 s
    assert stream.getvalue() == "step 120/600  loss 5.123  ppl 167.8  lr 9.1e-04  8.2k tok/s  ETA 8:00\n"


def test_without_perplexity():
    tracker, stream = plain(kind=IMAGES)
    tracker.log({"step": 1, "train_loss": 2.0, "images_per_s": 1500000.0})
    assert stream.getvalue() == "step   1/600  loss 2.000  1.50M img/s  ETA 0:03\n"


def test_images_have_their_own_rate_and_slow_data_is_shown():
    tracker, stream = plain(samples_per_step=64, kind=IMAGES)
    row = {"step": 100, "train_loss": 1.5, "lr": 1e-3, "images_per_s": 320.0}
    tracker.log(row | {"data_wait": 0.1})
    tracker.log(row | {"step": 200, "data_wait": 0.347})
    # 64 images a step: 500 steps left are 32,000 images, 100 s at 320 a second; 400 steps are 80 s
    assert stream.getvalue().splitlines() == [
        "step 100/600  loss 1.500  lr 1.0e-03  320 img/s  ETA 1:40",
        "step 200/600  loss 1.500  lr 1.0e-03  320 img/s  ETA 1:20  waiting for data 35 %",
    ]


def test_accuracies_have_two_decimals_and_averaged_weights_are_shown():
    tracker, stream = plain(kind=IMAGES)
    row = {"valid_loss": 0.25, "valid_top1": 93.1, "valid_top5": 100.0, "ema_valid_loss": 0.5, "ema_valid_top1": 93.456}
    tracker.log({"step": 300, **row, "radius/00": 2.0})
    assert stream.getvalue() == (
        "step 300/600  valid_loss 0.250  valid_top1 93.10  valid_top5 100.00  ema_valid_loss 0.500"
        "  ema_valid_top1 93.46\n"
    )


def test_an_evaluation_line_has_every_number_but_the_layers():
    tracker, stream = plain()
    tracker.log({"step": 100, "valid_loss": 4.5, "valid_ppl": 90.017, "radius/00": 2.0})
    assert stream.getvalue() == "step 100/600  valid_loss 4.500  valid_ppl 90.017\n"


def test_a_loss_too_large_for_exp():
    tracker, stream = plain()
    tracker.log({"step": 1, "train_loss": 1000.0})
    assert "loss 1000.000  ppl inf" in stream.getvalue()
    tracker.log({"step": 600, "train_loss": float("nan")})
    assert "loss nan  ppl nan" in stream.getvalue()


def test_a_short_run_prints_about_twenty_lines(clock):
    tracker, stream = plain()
    for step in range(1, 601):
        clock[0] += 0.05
        tracker.log({"step": step, "train_loss": 5.0})
    lines = stream.getvalue().splitlines()
    assert 20 <= len(lines) <= 22
    assert lines[-1].startswith("step 600/600")


def test_a_long_run_prints_a_line_a_minute(clock):
    tracker, stream = plain(steps=500_000)
    for step in range(10, 7210, 10):  # a row every 5 s for one hour
        clock[0] += 5
        tracker.log({"step": step, "train_loss": 5.0})
    assert 59 <= len(stream.getvalue().splitlines()) <= 61


def test_the_rate_is_measured_when_the_row_has_none(clock):
    tracker, stream = plain(steps=100, samples_per_step=1000)
    tracker.log({"step": 10, "train_loss": 1.0})
    clock[0] += 10
    tracker.log({"step": 20, "train_loss": 1.0})
    # 10 steps of 1000 tokens in 10 s; 80 steps left
    assert stream.getvalue().splitlines()[-1].endswith("1.0k tok/s  ETA 1:20")


def test_rates_of_rows_are_smoothed():
    tracker, stream = plain(steps=100, samples_per_step=1000)
    tracker.log({"step": 10, "train_loss": 1.0, "tokens_per_s": 1000.0})
    tracker.log({"step": 20, "train_loss": 1.0, "tokens_per_s": 3000.0})
    # 0.7 x 1,000 + 0.3 x 3,000 = 1,600; 80,000 tokens left are 50 s
    assert stream.getvalue().splitlines()[-1].endswith("1.6k tok/s  ETA 0:50")


def test_a_measured_rate_has_the_unit_of_its_task(clock):
    tracker, stream = plain(steps=100, samples_per_step=64, kind=IMAGES)
    tracker.log({"step": 10, "train_loss": 1.0})
    clock[0] += 10
    tracker.log({"step": 20, "train_loss": 1.0})
    assert stream.getvalue().splitlines()[-1].endswith("64 img/s  ETA 1:20")  # 80 steps left, one a second


def test_evaluation_time_does_not_slow_the_rate(clock):
    tracker, stream = plain(steps=100, samples_per_step=1000)
    tracker.log({"step": 10, "train_loss": 1.0})
    tracker.evaluating("valid", 1, 2)
    clock[0] += 1000
    tracker.log({"step": 20, "train_loss": 1.0})
    clock[0] += 10
    tracker.log({"step": 30, "train_loss": 1.0})
    assert stream.getvalue().splitlines()[-1].endswith("1.0k tok/s  ETA 1:10")


def test_what_is_left_has_evaluations_in_it_once_one_was_measured(clock):
    tracker, stream = plain(steps=110, samples_per_step=1000, eval_every=20)
    tracker.log({"step": 20, "train_loss": 1.0, "tokens_per_s": 1000.0, "seconds": 20.0})
    clock[0] += 30  # the evaluation
    tracker.log({"step": 20, "valid_ppl": 90.0, "seconds": 20.0})
    clock[0] += 6 + 20  # what it led to, a checkpoint, and 20 steps of a second
    tracker.log({"step": 40, "train_loss": 1.0, "tokens_per_s": 1000.0, "seconds": 40.0})
    clock[0] += 36
    tracker.log({"step": 40, "valid_ppl": 80.0, "seconds": 40.0})
    clock[0] += 70
    tracker.log({"step": 110, "train_loss": 1.0, "tokens_per_s": 1000.0, "seconds": 110.0})
    left = [line.split("ETA ")[1] for line in stream.getvalue().splitlines() if "ETA" in line]
    # 90 steps; 70 and the evaluations at 40, 60, 80, 100 and 110, of 36 s each; that at 110, of (36 + 36) / 2
    assert left == ["1:30", "4:10", "0:36"]


def test_a_log_file_says_which_measurement_begins():
    tracker, stream = plain()
    tracker.measuring("test", "ema_best")
    assert stream.getvalue() == "measuring test, ema best ...\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (90061, "25:01:01")])
def test_durations(seconds, text):
    assert console_module._duration(seconds) == text


TERMINAL = """
from fourierformer.tasks import task_named
from fourierformer.tracking.console import ConsoleTracker
about = dict(task=task_named("language"), metric="ppl", memory=lambda: 3 * 2**29)
tracker = ConsoleTracker(600, 8192, "fourier [s1]", step=300, **about)
draw = tracker._live.progress.refresh if tracker._live else lambda: None  # as its thread does four times a second
tracker.say("resumed at step 300 [ok]")
for step in range(310, 350, 10):
    tracker.log({"step": step, "train_loss": 5.0, "lr": 1e-3, "tokens_per_s": 8200.0})
    draw()
for done in range(4):
    tracker.evaluating("valid", done, 3)
    draw()
print("a line from elsewhere")
tracker.log({"step": 340, "valid_ppl": 90.5})
tracker.close(0)
"""


def on_a_terminal(code, **environment):
    """Runs code on a pseudo-terminal and returns everything it drew."""
    parent, child = pty.openpty()
    environment = {"TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"} | environment
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | environment
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=child, stderr=child, env=env)
    os.close(child)
    drawn = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # Linux answers EIO when the other side is closed
            break
        if not part:
            break
        drawn += part
    os.close(parent)
    assert process.wait(30) == 0, drawn.decode()
    return drawn.decode()


def without_escapes(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_gets_a_bar_with_everything_above_it():
    drawn = on_a_terminal(TERMINAL)
    text = without_escapes(drawn)
    assert "fourier [s1]" in text  # brackets are not styles
    assert "300/600" in text  # a resumed run continues where it was
    assert "340/600 loss 5.000  ppl 148.4  8.2k tok/s  ETA 4:20  lr 1.0e-03" in text
    assert "lr 1.0e-03  1.5 GiB" in text
    assert "resumed at step 300 [ok]" in text
    assert re.search(r"valid +\S+ +1/3", text)
    assert "a line from elsewhere" in text
    assert "step 340/600  valid_ppl 90.500" in text
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l") >= 0  # the cursor is back


@pytest.mark.parametrize(("columns", "beside"), [("80", "  ppl 148.4  8.2k tok/s  ETA 4:20"), ("60", "  ppl 148.4")])
def test_a_narrow_terminal_shows_bar_step_and_loss(columns, beside):
    drawn = without_escapes(on_a_terminal(TERMINAL, COLUMNS=columns))
    assert re.search(rf"fourier \[s1\] [━╸╺]{{8}} 340/600 loss 5.000{beside}", drawn)
    assert max(len(line.rstrip()) for line in re.split(r"[\r\n]+", drawn)) <= int(columns)
    long = TERMINAL.replace("fourier [s1]", "12/24 fourier_first_coordinate lr=0.002 layers=2 seed=1")
    assert re.search(
        r"12/24 fourier_fir\S*.*… [━╸╺]{8} 340/600 loss 5.000", without_escapes(on_a_terminal(long, COLUMNS=columns))
    )


def test_an_evaluation_on_a_narrow_terminal_shows_its_name_and_count():
    measured = TERMINAL.replace('"valid", done, 3', '"valid overlapping", 2048 * done, 8192')
    drawn = without_escapes(on_a_terminal(measured, COLUMNS="80"))
    assert re.search(r"valid overlapping [━╸╺]{8} 2048/8192", drawn)
    assert "340/600   loss 5.000  ppl 148.4  8.2k tok/s" in drawn  # beside it, what then fits


def test_no_color_is_respected():
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m|\x1b\[38;")
    assert colour.search(on_a_terminal(TERMINAL))
    assert not colour.search(on_a_terminal(TERMINAL, NO_COLOR="1"))


def test_a_dumb_terminal_and_a_worker_process_get_plain_lines():
    assert "\x1b" not in on_a_terminal(TERMINAL, TERM="dumb")
    worker = "import multiprocessing\nmultiprocessing.current_process().name = 'LokyProcess-1'\n" + TERMINAL
    assert "\x1b" not in on_a_terminal(worker)
