"""Find run directories: all at or below some folders, each once."""

import os
from collections.abc import Iterable
from pathlib import Path

from fourierformer.errors import SetupError
from fourierformer.results.runs import Run, read_run

HOW_TO_MAKE_ONE = (
    "`make train` (a quick comparison), `python train_lm.py` or `python train_vit.py` (one run) makes runs under runs/."
)
# any of these makes a folder a run directory; config.yaml is the first file a run writes
MARKERS = frozenset({"config.yaml", "status.json", "summary.json", "meta.json", "metrics.jsonl"})


def collect(roots: str | Path | Iterable[str | Path]) -> list[Run]:
    """Every run directory at or below `roots`, sorted and each once. A missing root is an error, an empty one not.

    Examples:
        >>> from fourierformer.results import collect
        >>> [(run.name, run.state) for run in collect("runs")]
        [('my_run', 'completed')]
    """
    roots = [roots] if isinstance(roots, str | Path) else list(roots)
    directories: dict[Path, Path] = {}
    exports: list[Path] = []
    for root in map(Path, roots):
        if not root.is_dir():
            raise SetupError(f"{root}: no such directory. {HOW_TO_MAKE_ONE}")
        for path in _run_directories(root):
            directories.setdefault(path.resolve(), path)
        exports += [root] if (root / "model.safetensors").is_file() else []
    if exports and not directories:
        raise SetupError(f"{exports[0]} is an exported model, not a run: name the run behind it")
    return [read_run(path) for path in sorted(directories.values())]


def runs_among(paths: list[Path]) -> list[Path]:
    """Run directories at or below these paths; of runs/builtin/*, files and runs that were set aside are left out."""
    runs = [run.path for run in collect(path for path in paths if not path.is_file()) if run.state != "set aside"]
    if not runs:
        raise SetupError(f"no runs among {', '.join(map(str, paths))}")
    return runs


def _run_directories(root: Path) -> Iterable[Path]:
    def refuse(error: OSError):  # os.walk would skip a folder it may not read without a word
        raise SetupError(
            f"{error.filename} cannot be read: {error.strerror}. Fix its permissions, or name other folders."
        )

    for folder, children, files in os.walk(root, onerror=refuse):
        if MARKERS.intersection(files):
            children.clear()  # checkpoints and tracker files of a run are not runs
            yield Path(folder)
        # .hydra holds a config.yaml too
        children[:] = [child for child in children if not child.startswith(".")]
