"""Which trials a campaign has, in which order."""

from collections.abc import Iterable, Iterator
from itertools import cycle

from faults.crafted import crafted_checkpoints
from faults.damage import damaged_and_read, damaged_and_resumed, damaged_prepared_data
from faults.disks import failing_at_operations, may_mount, really_full
from faults.foreign import foreign_exports, read_by_scripts
from faults.inputs import broken_streams, fuzzed_overrides
from faults.opened import opened
from faults.places import with_junk, with_things_in_the_way
from faults.settings import Bench
from faults.started import started
from faults.stops import killed_at_instants, killed_at_operations, one_of_two_killed, signalled
from faults.trials import Trial, in_turn

TWO = ("language, 2 processes", "vision, 2 processes")
NAMES = (
    *("language", "vision", "masked", "seq2seq", "language, bf16, averaged", "vision, bf16, averaged"),
    *("recall", "regression"),
)


def campaign(bench: Bench, seed: str, only: str = "") -> Iterator[Trial]:
    """Without end: a caller takes as many as it has time for."""
    groups: dict[str, Iterable[Trial]] = {
        "killed at operations": _mixed(killed_at_operations, bench, seed),
        "killed at instants": _mixed(killed_at_instants, bench, seed),
        "disk": _mixed(failing_at_operations, bench, seed),
        "damaged, resumed": _mixed(damaged_and_resumed, bench, seed),
        "damaged, read": _mixed(damaged_and_read, bench, seed),
        "damaged, opened": opened(bench, seed),
        "prepared": damaged_prepared_data(bench, "language", seed),
        "crafted": _mixed(crafted_checkpoints, bench, seed),
        "scripts": _mixed(read_by_scripts, bench, seed),
        "in the way": _mixed(with_things_in_the_way, bench, seed),
        "junk": _mixed(with_junk, bench, seed),
        "exports": _mixed(foreign_exports, bench, seed),
        "started": _mixed(started, bench, seed),
        "override": fuzzed_overrides(bench, seed),
        "stream": broken_streams(bench, "language", seed),
        "signal": _mixed(signalled, bench, seed),
        "two processes": _mixed(one_of_two_killed, bench, seed, TWO),
    }
    if may_mount(bench.folder / "mount"):
        groups["full file system"] = _mixed(really_full, bench, seed, NAMES[:2])
    return in_turn({name: trials for name, trials in groups.items() if only in name})


def _mixed(make, bench: Bench, seed: str, names: tuple[str, ...] = NAMES) -> Iterator[Trial]:
    """One trial of each setting after the other; a setting begins when its turn comes."""
    running: dict[str, Iterator[Trial]] = {}
    finished: set[str] = set()
    for name in cycle(names):
        if len(finished) == len(names):
            return
        running.setdefault(name, iter(make(bench, name, seed)))
        trial = next(running[name], None)
        if trial is None:
            finished.add(name)
        else:
            yield trial
