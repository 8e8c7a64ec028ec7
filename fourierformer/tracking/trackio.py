"""Log a run to Trackio, a data base on this machine with a page and without an account; its failures stop no training.

`trackio show --project fourierformer` opens the page. The data base is in TRACKIO_DIR, a variable of Trackio.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fourierformer.errors import short
from fourierformer.printing import echo

if TYPE_CHECKING:
    import trackio

# no thread that measures the machine, no page inside a notebook
SETTINGS: dict[str, Any] = {"resume": "allow", "embed": False, "auto_log_cpu": False, "auto_log_gpu": False}


class TrackioTracker:
    """Log rows and final numbers to Trackio; without effect where it cannot start. samples: ("tokens", step -> their
    number), logged beside the step. arguments: of trackio.init. A run that resumes is found by its name."""

    def __init__(
        self, *, project: str, samples: tuple[str, Callable[[int], int]], say: Callable[[str], None] = echo, **arguments
    ):
        self._unit, self._samples_after = samples
        self._run: trackio.Run | None = None
        self._step = 0
        try:
            import trackio

            with contextlib.redirect_stdout(io.StringIO()):  # a dozen lines; the one that matters is printed here
                self._run = trackio.init(project, **SETTINGS, **arguments)
            say(f"trackio: show it with: trackio show --project {project}")
        except Exception as error:  # also if trackio is missing, broken or too old
            hint = f"{short(error)}; pip install trackio"
            say(f"trackio is off for this run ({hint}); metrics.jsonl has every number.")

    def log(self, row: dict) -> None:
        if self._run is not None:
            self._step = row["step"]
            values = {key: value for key, value in row.items() if key != "step"}  # a name that Trackio keeps for itself
            self._run.log(values | {self._unit: self._samples_after(self._step)}, step=self._step)

    def summary(self, values: dict) -> None:
        if self._run is not None:  # Trackio has no other place for them than a row
            self._run.log(values, step=self._step)

    def close(self, exit_code: int) -> None:
        if self._run is not None:
            import trackio

            self._run = None
            with contextlib.redirect_stdout(io.StringIO()):
                trackio.finish()
