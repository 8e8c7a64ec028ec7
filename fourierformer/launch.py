"""The process around Hydra: one-line errors, exit codes, and the table after a sweep."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hydra.experimental.callback import Callback

from fourierformer.errors import Interrupted, UserError, did_you_mean

EXIT_CODES = "0 done, 1 crash, 2 set-up or config error, 3 diverged, 130/143 interrupted with a checkpoint saved"


class JobFailed(Exception):
    """A run failed and has said so itself (console, status.json); Hydra goes on with the other jobs of a sweep."""

    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code


class SweepRecord(Callback):
    """Hydra callback: remembers where the running sweep keeps its record. Jobs, in whatever process, write
    <record>/<number>.run with their run directory; after the sweep the parent reads them back."""

    current: Path | None = None

    def on_multirun_start(self, config, **_):
        SweepRecord.current = Path(config.hydra.sweep.dir)


def launch(train: Callable[[], None]) -> None:
    """Run a Hydra main and end the process with one of EXIT_CODES."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of print: the text below is shorter and says what to do
    os.environ["FOURIERFORMER_SWEEP"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{os.getpid()}"
    code = 0
    try:
        train()
    except JobFailed as failure:
        code = failure.exit_code
    except Interrupted as stop:
        code = 130 if stop.signal_number == 2 else 143
    except KeyboardInterrupt:
        code = 130
    except UserError as error:
        code = complain(error, error.exit_code)
    except Exception as error:
        if not _from_hydra(error):
            raise
        code = complain(explain(error), 2)
    if SweepRecord.current:
        _sweep_summary(SweepRecord.current)
    sys.exit(code)


def complain(message: object, code: int) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def exit_on_user_error():
    """For scripts: a UserError ends the process with its one message and exit code instead of a traceback."""
    try:
        yield
    except UserError as error:
        sys.exit(complain(error, error.exit_code))


def in_sweep() -> bool:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def record_job(run_dir: Path) -> None:
    """Called by a job: in a sweep it leaves its run directory where the parent looks for it."""
    from hydra.core.hydra_config import HydraConfig

    if in_sweep():
        record = Path(HydraConfig.get().sweep.dir)
        record.mkdir(parents=True, exist_ok=True)
        (record / f"{HydraConfig.get().job.num:04d}.run").write_text(str(run_dir.resolve()))


def show(runs: list[Path], report: Path) -> None:
    """The table of these runs on the console, and the page with the curves."""
    from fourierformer.report import write_report
    from fourierformer.results import collect, comparison, render_text

    found = collect(runs)
    print(f"\n{render_text(comparison(found), colour=sys.stdout.isatty())}")
    print(f"\nreport: {write_report(found, report)}")


def _sweep_summary(record: Path) -> None:
    runs = [Path(p.read_text()) for p in sorted(record.glob("*.run"))]
    if runs:
        show(runs, report=runs[0].parent / "report.html")


def _from_hydra(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("hydra", "omegaconf")


def explain(error: Exception) -> str:
    """Hydra's error as one line with the nearest valid name."""
    text = str(error)
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        key = unknown.group(1)
        return f"unknown key '{key}'{did_you_mean(key, _known_keys())}"
    option = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if option:
        group, name = option.groups()
        valid = re.findall(r"^\t(\S+)", text, flags=re.M)
        return f"{group}={name}: no such {group}{did_you_mean(name, valid)}. Options: {', '.join(valid)}"
    return re.sub(r"\s*\n\s*", " | ", text.strip())


def _known_keys() -> set[str]:
    """Every dotted key and group of the default configs, for suggestions."""
    import yaml

    folder = Path(__file__).parent.parent / "configs"
    keys: set[str] = set()
    for file in folder.glob("*.yaml"):
        keys |= {k for k in yaml.safe_load(file.read_text()) if k not in ("defaults", "hydra")}
    for group in (p for p in folder.iterdir() if p.is_dir()):
        keys.add(group.name)
        for file in group.glob("*.yaml"):
            text = file.read_text()
            prefix = "" if "@package _global_" in text else f"{group.name}."
            keys |= {prefix + k for k in (yaml.safe_load(text) or {}) if k not in ("defaults", "hydra")}
    return keys
