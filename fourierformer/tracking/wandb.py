"""Log a run to Weights & Biases, online if possible, else to offline files; its failures never stop a training.

Offline files are in `<run directory>/wandb/`; `wandb sync` uploads them later. All seeds of one experiment share a
`group` (the config's hash without the seed, and the values that their command sets), so that the web page can average
them.
"""

from __future__ import annotations

import netrc
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from fourierformer.errors import short
from fourierformer.network import first_hop, reachable
from fourierformer.printing import echo

if TYPE_CHECKING:
    import wandb

PROBE_SECONDS = 2
SETTINGS: dict[str, Any] = {
    "silent": True,  # the one relevant line is printed here, above the progress bar
    "console": "off",  # a live bar redraws four times a second: megabytes of captured output
    "init_timeout": 20,
    "finish_timeout": 60,  # by default it waits for the network for ever
    "x_transaction_log_flush_interval": 1.0,  # kill -9 loses this much; the default is 15 s
}

Mode = Literal["auto", "online", "offline", "disabled"]


class WandbTracker:
    """Log rows and final numbers to wandb; without effect where wandb cannot start. samples: ("tokens", step -> their
    number), logged beside the step, as another x-axis of the web page. artifact: the folder to upload at the end of a
    finished run. arguments: of wandb.init."""

    def __init__(
        self,
        *,
        samples: tuple[str, Callable[[int], int]],
        artifact: Callable[[], Path | None] | None = None,
        mode: Mode = "auto",
        say: Callable[[str], None] = echo,
        **arguments,
    ):
        self.say, self._artifact = say, artifact
        self._unit, self._samples_after = samples
        self._run: wandb.Run | None = None
        self._highest = -1
        try:
            self._start(mode, arguments | {"resume": "allow"})
        except Exception as error:  # also if wandb is missing, broken or too old
            say(f"wandb is off for this run ({short(error)}); metrics.jsonl has every number.")

    def log(self, row: dict) -> None:
        # a resumed online run has the steps before it was killed; those after the checkpoint repeat, equal bit by bit.
        # An evaluation may have been cut off: after its step wandb takes numbers of the next one only
        cut_off = row["step"] == self._highest - 1 and "train_loss" not in row
        if self._run is not None and (cut_off or row["step"] >= self._highest):
            self._highest = max(self._highest, row["step"])
            self._run.log(row | {self._unit: self._samples_after(row["step"])}, step=self._highest)

    def summary(self, values: dict) -> None:
        if self._run is not None:
            self._run.summary.update(values)

    def close(self, exit_code: int) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            try:
                if exit_code == 0 and self._artifact and (folder := self._artifact()):
                    _upload(run, folder)
            finally:
                run.finish(exit_code=exit_code)

    def _start(self, mode: Mode, arguments: dict) -> None:
        mode, reason = choose_mode(mode)
        if mode == "disabled":
            return
        import wandb

        # older releases lack some of these, and an unknown setting is an error
        settings = {key: value for key, value in SETTINGS.items() if key in wandb.Settings.model_fields}
        if mode == "online":
            try:
                self._run = wandb.init(mode="online", settings=wandb.Settings(**settings), **arguments)
                self._highest = self._run.step if self._run.resumed else -1
                self.say(f"wandb: {self._run.url}")
                return
            except Exception as error:
                reason = short(error)
                wandb.teardown()  # ends the service of the failed start, which would retry
        self._run = wandb.init(mode="offline", settings=wandb.Settings(**settings), **arguments)
        # a run that was resumed has several folders, each with a part of its steps
        folders = f"{shlex.quote(str(Path(self._run.dir).parents[1]))}/offline-run-*-{self._run.id}*"
        self.say(f"wandb: offline ({reason}); send it later with: wandb sync {folders}")


def _upload(run: wandb.Run, folder: Path) -> None:
    """Add a folder to the run as the artifact best-ID, of which wandb keeps every version."""
    import wandb

    artifact = wandb.Artifact(f"best-{run.id}", type="model")
    for path in folder.iterdir():
        artifact.add_file(str(path), policy="immutable")  # without a copy, which would stay until a `wandb sync`
    logged = run.log_artifact(artifact)
    if not run.offline:  # `finish` would give up after a minute
        logged.wait()


def choose_mode(mode: Mode) -> tuple[Mode, str]:
    """(mode, reason not to be online). Decided before wandb.init, which with a key but without a network would try for
    half a minute."""
    if mode == "auto":
        is_disabled = os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1")
        wanted = "disabled" if is_disabled else os.environ.get("WANDB_MODE", "online")
        known: dict[str, Mode] = {"dryrun": "offline", "offline": "offline", "disabled": "disabled"}
        mode = known.get(wanted.lower(), "online")
        if mode != "online":
            return mode, f"WANDB_MODE={wanted}"
    if mode != "online":
        return mode, "tracker.mode"
    import wandb

    url = urlsplit(os.environ.get("WANDB_BASE_URL") or wandb.setup().settings.base_url)
    if not _logged_in(url.hostname):
        return "offline", "not logged in: wandb login"
    host, port = first_hop(url)
    if not reachable(host, port, PROBE_SECONDS):
        return "offline", f"{host} cannot be reached"
    return "online", ""


def _logged_in(host: str | None) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(path).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
