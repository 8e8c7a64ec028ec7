"""Checkpoints that survive kill -9, full disks and flipped bits.

    checkpoints/step_00001234/{state.pt, MANIFEST.json}

A checkpoint is written under a name ending in `.tmp`, synced, and renamed: a directory without `.tmp` is complete.
Saving a step again (after a stop inside gradient accumulation) writes `step_00001234-2` before deleting the first. The
manifest holds the size and sha256 of every file, because torch.load detects a short file but not a flipped bit, and
whether the checkpoint was the best so far: written together, the two cannot disagree. `state.pt` holds tensors and
plain types only, so that loading it runs no code (`weights_only=True`).
"""

import contextlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from fourierformer.errors import UserError, one_line
from fourierformer.files import atomic_write_text, file_sha256, require_small, size_text
from fourierformer.printing import echo
from fourierformer.training.state_file import require_plain, state_bytes, write_state

FORMAT = 1
NAME = re.compile(r"step_(\d{8,})(?:-(\d+))?")  # a complete checkpoint: step, revision


class Checkpoints:
    """Keep the last `keep` steps and the best one. Only save() and tidy() change the directory: reading beside a
    running training is safe. With `config_hash`, each carries it, and one of another config is refused."""

    def __init__(
        self,
        directory: Path | str,
        keep: int = 2,
        say: Callable[[str], None] = echo,
        *,
        config_hash: str | None = None,
    ):
        if keep < 1:
            raise ValueError(f"keep={keep}: must be at least 1")
        self.directory, self.keep, self.say, self.config_hash = Path(directory), keep, say, config_hash
        self._intact: set[Path] = set()  # read without an error; checkpoints in neither set are unread
        self._damaged: set[Path] = set()
        self._lost: set[Path] = set()  # the damaged ones that are not trained again, and may be the best

    def save(self, step: int, state: dict, best: bool = False) -> Path:
        """Write a checkpoint and return its directory. A failure leaves only the earlier checkpoints, unchanged."""
        state = state | {"config_hash": self.config_hash}
        require_plain(state, "state")
        target = self._free_name(step)
        aside = target.with_name(target.name + ".tmp")
        needed = state_bytes(state)
        try:
            self.directory.mkdir(exist_ok=True)  # not its parents: a checkpoint alone is no run
            self._delete_leftovers()
            free = shutil.disk_usage(self.directory).free
            if free < needed:
                reason = f"the disk is full: needs {size_text(needed)}, free {size_text(free)}"
                raise UserError(self._not_saved(step, reason))
            _write(aside, step, state, best)
            os.replace(aside, target)
            _sync_directory(self.directory)
        except OSError as error:
            _discard(aside, target)
            if not self.directory.parent.exists():
                way_out = "Move it back, and the same command resumes; without it, that command begins again."
                raise UserError(f"{self.directory.parent} was removed or renamed during the run. {way_out}") from error
            available = "unknown"
            with contextlib.suppress(OSError):
                available = size_text(shutil.disk_usage(self.directory).free)
            reason = f"{error.strerror or error}: needs {size_text(needed)}, free {available}"
            raise UserError(self._not_saved(step, reason)) from error
        except BaseException:
            _discard(aside, target)
            raise
        self._prune()
        return target

    def tidy(self) -> None:
        """Delete the leftovers of a killed process: parts of a checkpoint, and one no longer needed. Print which of the
        others are damaged, while they may be restored. Call after `latest`: if one is damaged, all stay until a new one
        is saved."""
        self._delete_leftovers()
        for path in (path for path in self._complete() if path not in self._intact | self._damaged):
            try:
                problem = _problem(path)
            except PermissionError as error:
                problem = f"{error.strerror}"
            if problem:
                self._damaged.add(path)
                was_best = "; nothing can be measured at the end until it is restored or a better one is saved"
                if _best_flag(path) is not False:
                    self._lost.add(path)
                lost = was_best if path in self._lost else ""
                self.say(f"The checkpoint {path} is damaged ({problem}). The training does not need it{lost}.")
        if not self._damaged:
            self._prune()

    def newest_step(self) -> int:
        """The step of the newest checkpoint that is not known to be damaged, without reading it; 0 without any."""
        return max((_step_and_revision(path)[0] for path in self._complete() if path not in self._damaged), default=0)

    def latest(self) -> tuple[int, dict] | None:
        """(step, state) of the newest intact checkpoint, on the CPU; None without any, UserError if all are damaged."""
        return self._load(self._complete(), "checkpoint")

    def best(self) -> tuple[int, dict] | None:
        """(step, state) of the best checkpoint, as `latest`."""
        # flag None: the manifest is damaged, so this may have been the best one, which `_load` reports
        return self._load([path for path in self._complete() if _best_flag(path) is not False], "best checkpoint")

    def best_path(self) -> Path | None:
        """The directory of the best checkpoint, not read."""
        return next((path for path in self._complete() if _best_flag(path)), None)

    def _load(self, candidates: list[Path], what: str) -> tuple[int, dict] | None:
        problems = []
        for path in candidates:
            try:
                problem = _problem(path)
            except PermissionError as error:  # it may be intact: to go on from an older one would cut the log
                raise self._unreadable(error) from error
            if problem is None:
                state, problem = _loaded(path / "state.pt")
                if state is not None:
                    self._refuse_others(path, state.pop("config_hash", None))
                    self._intact.add(path)
                    return _step_and_revision(path)[0], state
            self._damaged.add(path)
            problems.append(f"{path.name}: {problem}")
            if path != candidates[-1]:
                self.say(f"The {what} {path} is damaged ({problem}); falling back to the one before.")
        if problems:
            raise UserError(
                f"Every {what} in {self.directory} is damaged ({'; '.join(problems)}). Restore one from a copy, or "
                "start again with fresh=true; training does not silently begin again from step 0."
            )
        return None

    def _refuse_others(self, path: Path, found: object) -> None:
        """UserError for the checkpoint of another run. Earlier versions wrote no hash."""
        if None not in (found, self.config_hash) and found != self.config_hash:
            raise UserError(
                f"{path} belongs to a run of another config ({str(found)[:8]!r} instead of {self.config_hash!r}): the "
                "files of two runs are mixed here. Restore this run from a copy, or start again with fresh=true."
            )

    def _complete(self) -> list[Path]:
        """The directories of complete checkpoints, newest first."""
        complete = [self.directory / name for name in self._names() if NAME.fullmatch(name)]
        return sorted(complete, key=_step_and_revision, reverse=True)

    def _names(self) -> list[str]:
        """The names in the directory; none if there is no directory. UserError where it cannot be read: Path.glob would
        find nothing there, and a run would begin again at step 0."""
        try:
            return os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> UserError:
        problem = f"{error.filename or self.directory} cannot be read ({error.strerror}): the last step is unknown"
        return UserError(f"{problem}. Fix its permissions; the same command resumes.")

    def _free_name(self, step: int) -> Path:
        revisions = [_step_and_revision(path)[1] for path in self._complete() if _step_and_revision(path)[0] == step]
        return self.directory / (f"step_{step:08d}" + (f"-{max(revisions) + 1}" if revisions else ""))

    def _prune(self) -> None:
        """Delete surplus checkpoints. The new one is on the disk by now: a failure to delete costs space only. Damaged
        ones are not among the last `keep`; those that may be the best stay until an intact best one is newer."""
        paths = self._complete()
        intact = [path for path in paths if path not in self._damaged and _best_flag(path) is not None]
        newest_of_step: dict[int, Path] = {}
        for path in intact:
            newest_of_step.setdefault(_step_and_revision(path)[0], path)
        best = [path for path in intact if _best_flag(path)][:1]
        stay = list(newest_of_step.values())[: self.keep] + best
        newer = paths[: paths.index(best[0])] if best else paths
        stay += [path for path in newer if path in self._lost or (path not in self._damaged and path not in intact)]
        for path in self._complete():
            if path not in stay:
                # renamed first: a directory that is deleted in part must not look like a checkpoint
                doomed = path.with_name(path.name + ".tmp")
                try:
                    os.replace(path, doomed)
                    _delete(doomed)
                except OSError as error:
                    self.say(f"The old checkpoint {path} could not be deleted ({error.strerror}).")

    def _delete_leftovers(self) -> None:
        """Delete the checkpoints that a killed process was writing or deleting."""
        for name in self._names():
            if name.startswith("step_") and name.endswith(".tmp"):
                with contextlib.suppress(OSError):
                    _delete(self.directory / name)

    def _not_saved(self, step: int, reason: str) -> str:
        intact = next((path for path in self._complete() if path not in self._damaged), None)
        kept = "There is no earlier checkpoint"
        if intact:
            kept = f"The last good checkpoint, step {_step_and_revision(intact)[0]}, is intact"
        way_out = "make room or fix the permissions, and the same command resumes" + (" there." if intact else ".")
        return f"Step {step} could not be saved in {self.directory} ({reason}). {kept}; {way_out}"


def _write(aside: Path, step: int, state: dict, best: bool) -> None:
    aside.mkdir()
    files = {"state.pt": write_state(aside / "state.pt", state)}
    manifest = {"format": FORMAT, "step": step, "best": best, "torch": torch.__version__, "files": files}
    atomic_write_text(aside / "MANIFEST.json", json.dumps(manifest, indent=2))
    _sync_directory(aside)


def _discard(aside: Path, target: Path) -> None:
    """Remove a checkpoint that could not be saved, also after its renaming, when only the last sync failed."""
    with contextlib.suppress(OSError):
        os.replace(target, aside)
    with contextlib.suppress(OSError):
        _delete(aside)


def _delete(path: Path) -> None:
    """Delete a checkpoint, or what stands in its place: a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _problem(path: Path) -> str | None:
    """The damage of a checkpoint, for a message; None if every byte is as it was written. PermissionError for one that
    may not be read, which need not be damaged."""
    try:
        manifest = _manifest(path)
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']}, this version reads {FORMAT}"
        if not isinstance(manifest["best"], bool):
            return "MANIFEST.json is not readable"
        if manifest["step"] != _step_and_revision(path)[0]:
            return f"MANIFEST.json is of step {manifest['step']}"
        for name, expected in manifest["files"].items():
            if (path / name).exists() and not (path / name).is_file():
                return f"{name} is not a file"
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if file_sha256(path / name) != expected["sha256"]:
                return f"{name} has another sha256 than when it was written"
        return None if "state.pt" in manifest["files"] else "MANIFEST.json does not list state.pt"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except PermissionError:
        raise
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "MANIFEST.json is not readable"


def _loaded(path: Path) -> tuple[dict | None, str]:
    """(the state, ''), or (None, the reason) for a file that fits its manifest, but that no run wrote."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a foreign file, which the message reports
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling a foreign file can raise anything
        text = one_line(error)  # torch's explanations have a page
        short = f"{type(error).__name__}: {text[:200]}{'...' if len(text) > 200 else ''}"
        return None, f"{path.name} is no state of a run ({short})"
    return (state, "") if isinstance(state, dict) else (None, f"{path.name} is no state of a run")


def _manifest(path: Path) -> dict:
    file = path / "MANIFEST.json"
    require_small(file)
    return json.loads(file.read_text())


def _best_flag(path: Path) -> bool | None:
    try:
        flag = _manifest(path)["best"]
        return flag if isinstance(flag, bool) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _step_and_revision(path: Path) -> tuple[int, int]:
    """(step, revision) of a complete checkpoint."""
    match = NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1]), int(match[2] or 1)


def _sync_directory(path: Path) -> None:
    """Write a directory to the disk: only then a renaming inside it is safe."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
