"""Standard output and error, and the options that scripts share. An error is one line; a run continues without a
console, since its files hold all results."""

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

from fourierformer.errors import UserError, os_error_text, out_of_memory_text
from fourierformer.printing import echo, visible


def print_error(message: object, code: int) -> int:
    """Print an error on stderr, after what stands on stdout. Returns the exit code."""
    sys.stdout.flush()
    echo(f"error: {message}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def exit_on_user_error():
    """A context for scripts: a UserError inside it, an error of the disk or too little memory ends the process with one
    line and an exit code, not with a traceback."""
    survive_closed_streams()
    try:
        yield
    except UserError as error:
        sys.exit(print_error(error, error.exit_code))
    except Exception as error:
        if reason := out_of_memory_text(error):
            sys.exit(print_error(reason, 1))
        if isinstance(error, OSError):
            way_out = "Choose a file or folder that this user can read, or write to"
            sys.exit(print_error(f"{os_error_text(error)}. {way_out}", 2))
        raise


def survive_closed_streams() -> None:
    """Make stdout and stderr survive a reader that leaves (`| head`), a full disk, a closing terminal, and letters that
    their encoding lacks. A stream that was closed (`>&-`) discards its text.

    Otherwise a table with box characters would fail a completed run under the locale C, and a file opened while
    descriptor 1 is free would get it: metrics.jsonl could receive a library's prints.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when Python started
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the process ends)
        elif stream is getattr(sys, f"__{name}__"):  # not a stream of a test or a notebook
            setattr(sys, name, _lasting(stream))


class _Lasting(io.FileIO):
    """A file that discards its text after the first error."""

    def write(self, data) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def _lasting(stream: TextIO) -> TextIO:
    stream.flush()
    lasting = io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False))
    by_line = stream.isatty() or stream is sys.__stderr__
    return io.TextIOWrapper(lasting, encoding=stream.encoding, errors="replace", line_buffering=by_line)


class Parser(argparse.ArgumentParser):
    """Of the arguments of a program, with its docstring as it stands. Control characters in a word that it refuses are
    shown as text."""

    def __init__(self, description: str | None = None, **options):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str):
        super().error(visible(message))


def add_run_options(parser: argparse.ArgumentParser, *, device: bool = True) -> None:
    """Add the arguments run, checkpoint, weights and device."""
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="best")
    parser.add_argument("--weights", choices=["raw", "ema"], default="raw", help="ema: their average over the training")
    if device:
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def chosen_weights(arguments: argparse.Namespace) -> dict[str, bool]:
    """The arguments `last` and `averaged` of functions that load a run."""
    return {"last": arguments.checkpoint == "last", "averaged": arguments.weights == "ema"}
