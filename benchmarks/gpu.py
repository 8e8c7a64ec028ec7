"""First launches, timings and tests on a GPU in nine minutes: python -m benchmarks.gpu (or: make bench-gpu)

Five parts, each with its own process and time limit, so that a failure or hang of one does not affect the others: first
launches of every kernel (benchmarks/first_contact.py), which compile what later parts need; the kernel beside softmax
at the paper's shapes; training steps of the paper's models (benchmarks/paper.py); the kernel's tests on the GPU; other
tests that need a GPU. Besides torch, Triton and timm the tests need pytest and hypothesis, the training steps and the
last part hydra-core; a part whose packages are missing is named, the others run. Rows are written one by one:
results/measured/gpu_*.csv, all of them as tables in gpu_summary.md. Exit code 0: every part is done; 1: one is not.

    python -m benchmarks.gpu --device cpu --small     # tiny shapes, a few steps, into runs/: shows that it works
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from fourierformer.errors import SetupError
from fourierformer.files import read_csv, write_csv
from fourierformer.provenance import MEASURED, REPOSITORY, header, machine
from fourierformer.runs.console_io import Parser, exit_on_user_error

# modules besides torch's
NEEDS = {
    "contact": (),
    "kernel": (),
    "training": ("hydra",),
    "tests": ("pytest", "hypothesis"),
    "others": ("hydra", "pytest", "hypothesis"),
}
TESTS = {
    "tests": ["tests/kernels/test_sinc_fused.py"],
    "others": [
        "tests/attention/test_dot_product.py",
        "tests/attention/test_sparse_tiles.py",
        "tests/training/test_host_reads.py",
    ],
}
# of the minutes; the rest is for starts and tables
SHARES = {"contact": 0.18, "kernel": 0.2, "training": 0.28, "tests": 0.2, "others": 0.12}
LAST_CALL = 40  # seconds before a part's end from which it begins nothing new: a measurement may compile first
GRACE = 10  # seconds for a part to end after a signal
KERNEL_COLUMNS = ("shape", "what", "name", "dtype", "ms", "MiB", "time x softmax", "memory x softmax", "of floor")
PARTS = "gpu_parts.csv"
FILES = {"contact": "gpu_contact.csv", "kernel": "gpu_kernel.csv", "training": "gpu_training.csv"}


@dataclass
class Part:
    name: str
    outcome: str
    detail: str
    seconds: float


def command_of(name: str, seconds: float, args: argparse.Namespace) -> list[str]:
    soft = max(seconds - LAST_CALL, seconds / 2)
    if name == "contact":
        tiny = ["--case", "odd width"] if args.small else []
        return ["benchmarks.first_contact", "--device", args.device, "--out", str(args.out / FILES[name]), *tiny]
    if name in TESTS:
        every = name == "tests" and not args.small
        few = ["-k", "not any_shape"] if every else ["-m", "gpu"]  # any_shape compiles sixty
        several = ["-n", "auto"] if importlib.util.find_spec("xdist") and not args.small else []
        report = f"--junitxml={report_of(name, args)}"
        # -v: the name of a failed test is printed although the part is stopped
        return ["pytest", "-q" if every else "-v", "-p", "no:cacheprovider", *several, *few, report, *TESTS[name]]
    if name == "kernel":
        chosen = ["portable"] if args.device == "cpu" else ["fused, half", "fused, float32 class"]
        tiny = ["--shape", "lm_tiny", "--batch", "1", "--repeats", "2"] if args.small else []
        limits = ["--device", args.device, "--budget-seconds", f"{soft:.0f}", "--csv", str(args.out / FILES[name])]
        return ["benchmarks.kernel", *limits, *tiny, *(word for each in chosen for word in ("--contestant", each))]
    tiny = ["--small"] if args.small else []
    limits = ["--device", args.device, "--minutes", f"{soft / 60:.2f}", "--out", str(args.out / FILES[name])]
    return ["benchmarks.paper", *limits, *tiny]


def run(name: str, seconds: float, args: argparse.Namespace) -> Part:
    """Run a part, for `seconds` at most."""
    print(f"\n== {name}: {seconds:.0f} s at most", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    if missing := [module for module in NEEDS[name] if not importlib.util.find_spec(module)]:
        packages = " ".join(missing).replace("hydra", "hydra-core")
        return Part(name, "failed", f"not installed: pip install {packages}", 0.0)
    started = time.monotonic()
    command = [sys.executable, "-m", *command_of(name, seconds, args)]
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        outcome = "failed" if process.wait(seconds) else "done"
    except subprocess.TimeoutExpired:
        outcome = "stopped"
    finally:
        end(process)
    detail = tests_detail(report_of(name, args)) if name in TESTS else f"exit code {process.returncode}"
    return Part(name, outcome, detail, time.monotonic() - started)


def end(process: subprocess.Popen) -> None:
    """End a process with all processes it started; first as by Ctrl-C, after which pytest writes its counts."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):  # of those that outlive it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def report_of(name: str, args: argparse.Namespace) -> Path:
    return args.reports / f"{name}.xml"


def tests_detail(report: Path) -> str:
    """'121 passed, 2 failed, 5 skipped'."""
    if not report.exists():
        return "no report"
    suite = ElementTree.parse(report).getroot().find("testsuite")
    count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return f"{count['tests'] - failed - count['skipped']} passed, {failed} failed, {count['skipped']} skipped"


def summary(parts: list[Part], head: str, args: argparse.Namespace) -> str:
    """All tables as Markdown."""
    lines = [f"# {machine(args.device)}", "", *(f"- {line.removeprefix('# ')}" for line in head.splitlines()), ""]
    lines += table([vars(part) for part in parts])
    for name, columns in {"contact": None, "kernel": KERNEL_COLUMNS, "training": None}.items():
        path = args.out / FILES[name]
        rows = read_csv(path).rows if path.exists() and any(part.name == name for part in parts) else []
        if rows:
            lines += ["", f"## {name}", "", *table(rows, columns)]
    return "\n".join(lines) + "\n"


def table(rows: list[dict], columns: tuple[str, ...] | None = None) -> list[str]:
    """Lines of a Markdown table with the columns that have a value somewhere."""
    shown = [key for key in columns or rows[0] if any(row.get(key) not in (None, "") for row in rows)]
    body = [[short(row.get(key)) for key in shown] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (shown, ["---"] * len(shown), *body)]


def short(value: object) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value or "-")
    return f"{number:,.0f}" if abs(number) >= 100 or number.is_integer() else f"{number:.3g}"


def arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny shapes, a few steps")
    parser.add_argument("--minutes", type=float, default=9, help="for everything together")
    parser.add_argument("--part", action="append", choices=SHARES, help="may be given several times; default: all")
    default = "results/measured; with --small runs/gpu_small"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"default: {default}")
    args = parser.parse_args()
    import torch  # after --help

    if args.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("no GPU: torch sees none. On a CPU: python -m benchmarks.gpu --device cpu --small")
    if args.device == "cpu" and not args.small:
        raise SetupError("--device cpu goes with --small: the paper's models take hours there")
    if not args.minutes > 0:
        raise SetupError(f"--minutes {args.minutes:g}: more than 0")
    args.out = (args.out or (REPOSITORY / "runs" / "gpu_small" if args.small else MEASURED)).resolve()
    return args


def main() -> bool:
    with exit_on_user_error():
        args = arguments()
        try:
            return all(part.outcome == "done" for part in measure(args))
        except OSError as error:
            raise SetupError(f"{error.filename}: {error.strerror}. Choose another folder: --out /some/folder") from None


def measure(args: argparse.Namespace) -> list[Part]:
    deadline = time.monotonic() + 60 * args.minutes - GRACE
    head = header("-m benchmarks.gpu", machine=machine(args.device))
    parts: list[Part] = []
    for name in args.part or SHARES:
        if name in FILES:
            (args.out / FILES[name]).unlink(missing_ok=True)  # rows of an earlier run
    with tempfile.TemporaryDirectory() as folder:
        args.reports = Path(folder)
        for name in args.part or SHARES:
            seconds = min(60 * args.minutes * SHARES[name], deadline - time.monotonic())
            parts.append(run(name, max(seconds, 1.0), args))
            write_csv(args.out / PARTS, [vars(part) for part in parts], head)
            (args.out / "gpu_summary.md").write_text(summary(parts, head, args))
    print(f"\n{summary(parts, head, args)}\n{args.out / 'gpu_summary.md'} has these tables; the rows are beside it")
    for part in parts:
        if part.outcome != "done":
            print(f"{part.name}: {part.outcome} {part.detail}", file=sys.stderr)
    return parts


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
