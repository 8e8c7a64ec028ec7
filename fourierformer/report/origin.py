"""Where the runs come from: commit, machine and versions, and the commands that made them."""

from collections import Counter
from collections.abc import Iterable

from fourierformer.results import Run

UNKNOWN = "not recorded"


def origin(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Where the runs come from: one line per fact, with every value it took and how often where runs differ."""
    found: dict[str, Counter] = {}
    runs = [run for run in runs if run.meta]
    for run in runs:
        for name, value in _facts(run).items():
            found.setdefault(name, Counter())[value] += 1
    lines = []
    for name, values in found.items():
        agree = len(values) == 1 and values.total() == len(runs)
        lines.append(
            (
                name,
                "; ".join(
                    value if agree else f"{value} ({n} of {len(runs)} runs)" for value, n in values.most_common()
                ),
            )
        )
    return lines


def commands(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """The distinct command lines and how many runs each made (a sweep is one command)."""
    return list(Counter(str(run.meta["command"]) for run in runs if run.meta.get("command")).items())


def _facts(run: Run) -> dict[str, str]:
    meta = run.meta
    commit = str(meta.get("commit") or UNKNOWN)
    versions = known if isinstance(known := meta.get("versions"), dict) else {}
    gpus = Counter(map(str, meta.get("gpus") or [])) if isinstance(meta.get("gpus"), list) else {}
    changed = " with uncommitted changes (dirty.diff in the run directory)" if meta.get("dirty") else ""
    facts = {
        "commit": commit + changed,
        "GPU": ", ".join(f"{count} x {name}" for name, count in gpus.items()) or "none",
        "CPU": f"{meta.get('cpu') or UNKNOWN}, {meta.get('cpus', '?')} cores",
        "attention backend": str(run.summary.get("attention_backend") or UNKNOWN),
        "platform": str(meta.get("platform") or UNKNOWN),
        "Python": str(meta.get("python") or UNKNOWN),
    }
    return facts | {str(name): str(version) for name, version in versions.items() if version}
