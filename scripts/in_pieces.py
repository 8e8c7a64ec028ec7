"""Runs a training command in pieces of some minutes, each of which resumes where the one before stopped.

    python scripts/in_pieces.py --minutes 9 train_lm.py sweep=table1 scale=wikitext2 seed=1,2,3

When the time is up the command gets SIGTERM, saves and ends; the same command resumes it. The last lines state which
runs of a sweep are done. Exit code 0: "all is done", or "the time is up"; else the command's own.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fourierformer.errors import UserError
from fourierformer.runs.directory import RunDirectory
from fourierformer.runs.sweep import read_names, read_record

STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # exit codes after SIGTERM: with its handler, and before it had one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9, help="of one piece; saving comes on top")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a script with its overrides")
    args = parser.parse_args()
    if not args.command or not Path(args.command[0]).is_file():
        parser.error(
            f"{' '.join(args.command[:1]) or 'nothing'} is not a script: in_pieces.py train_lm.py sweep=table1"
        )
    if not args.minutes > 0:
        parser.error(f"--minutes {args.minutes:g}: must be more than 0")
    started = time.time()
    code, stopped = run_piece([sys.executable, *args.command], 60 * args.minutes)
    for line in progress(runs_root(args.command), started):
        print(line)
    if code == 0:
        print("all is done")
    elif stopped and code in STOPPED:
        print("the time is up: the same command continues")
        return 0
    return code


def run_piece(command: list[str], seconds: float) -> tuple[int, bool]:
    """Runs the command for so many seconds at most: (exit code, whether it got SIGTERM). It gets Ctrl-C from the
    terminal, so this process ignores it."""
    process = subprocess.Popen(command)
    stopped = []

    def stop(*signals) -> None:
        stopped.append(True)
        process.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait(seconds), bool(stopped)
    except subprocess.TimeoutExpired:
        stop()
        return process.wait(), True


def runs_root(command: list[str]) -> Path:
    given = [word.partition("=")[2] for word in command if word.startswith("runs_root=")]
    return Path(given[-1] if given else "runs").expanduser()


def progress(root: Path, started: float) -> Iterator[str]:
    """A line for each run of this piece's sweep: how far it is, and its name."""
    records = [path for path in root.glob(".sweeps/*") if path.stat().st_mtime >= started - 1]
    if records:
        record = max(records, key=lambda record: record.name)
        jobs = {job["number"]: job for job in read_record(record)}
        for number, name in enumerate(read_names(record)):
            yield f"{state(jobs.get(number, {})):32} {name.label}"


def state(job: dict) -> str:
    if job.get("exit_code") == 0:
        return "done"
    try:
        status = RunDirectory(Path(job["run"])).read_status()
        return f"{status['state']} at step {status['step']:,} of {status['steps']:,}"
    except (KeyError, TypeError, OSError, UserError):  # it has no status yet
        return "not begun"


if __name__ == "__main__":
    sys.exit(main())
