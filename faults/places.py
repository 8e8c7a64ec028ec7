"""Links, pipes and sockets where files are written, and junk in place of a path, for every program."""

import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import executed, in_child
from faults.damage import HOLE, listen
from faults.guard import ESCAPES, SCRIPTS, ended_by, judged, judged_end, make_outside
from faults.settings import Bench
from faults.trials import ACCEPTED, REFUSED, Trial, Verdict, compared, seeded
from tests.helpers.command_line import only_run

WRITTEN = (  # by scripts, besides what a training leaves
    *("report.html", "figures", "figures/curves.svg", "pictures", "pictures/attention_maps.svg", "heads.json"),
    *("robustness.json", "../out/model", "../out/model/model.safetensors", "../out/model/config.json"),
    *("../out/robustness", "../out/robustness/robustness.csv", "../out/robustness/robustness.svg"),
)
# every script, with {junk} where it takes a path; {run} is a good run
JUNK: tuple[tuple[str, ...], ...] = (
    *((f"scripts/{name}", *(word.replace("{run}", "{junk}") for word in words)) for name, words in SCRIPTS.items()),
    ("scripts/check_curve", "{junk}"),
    ("scripts/doctor", "--runs-root", "{junk}"),
    ("scripts/evaluate", "{run}", "--data-root", "{junk}"),
    ("scripts/export", "{run}", "--to", "{junk}"),
    ("scripts/head_redundancy", "{run}", "--json", "{junk}"),
    ("scripts/inspect_kernel", "--tile", "{junk}"),
    ("scripts/list_messages", "{junk}"),
    ("scripts/make_tables", "{run}", "--collect", "{junk}"),
    ("scripts/make_tables", "{run}", "{junk}"),
    ("scripts/new_attention", "{junk}"),
    ("scripts/prepare_data", "wikitext2", "--root", "{junk}", "--cache", "{out}"),
    ("scripts/prepare_data", "{junk}"),
    ("scripts/release_check", "{junk}"),
    ("scripts/report", "{run}", "--figures", "{junk}"),
    ("scripts/report", "{run}", "--out", "{junk}"),
    ("scripts/robustness", "{run}", "--limit", "100", "--out", "{junk}"),
    ("scripts/show_attention", "{run}", "--out", "{junk}"),
    ("scripts/tune", "lm", "data.root={junk}"),
    ("outside/__main__", "--only", "zoology", "--suites", "{junk}"),
    ("train_lm", "runs_root={junk}"),
    ("train_lm", "run_dir={junk}"),
    ("train_lm", "data.root={junk}", "runs_root={out}"),
    ("train_lm", "data.cache={junk}", "runs_root={out}"),
)


def in_the_way(path: Path, draw: random.Random, outside: Path) -> str:
    """A link, a pipe or a socket at a place that is written."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = draw.choice(("file", "file", "folder", "folder", "new", "pipe", "socket"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        listen(path)
    else:
        path.symlink_to(outside / kind)
    return f"{path.name} is a link to a {kind}" if kind in ("file", "folder", "new") else f"{path.name} is a {kind}"


def junk(path: Path, draw: random.Random) -> Path:
    """A folder or file that is no run. Returns its path, which may have a name of its own."""
    kind = draw.choice(("empty", "missing", "file", "pipe", "socket", "loop", "device", "sparse", "noise", "pipes"))
    path = path.with_name(draw.choice((path.name, path.name, "\udcff\udce9", "a" * 255, ESCAPES, "--help", "x=y", "*")))
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("text\n")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        listen(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to(draw.choice(("/dev/null", "/dev/zero")))
    elif kind == "sparse":
        path.touch()
        os.truncate(path, HOLE)
    elif kind in ("noise", "pipes"):  # the names of a run, and other contents
        path.mkdir()
        for name in ("config.yaml", "config.json", "manifest.json", "meta.json", "summary.json", "status.json"):
            if kind == "pipes":
                os.mkfifo(path / name)
            else:
                (path / name).write_bytes(draw.choice((draw.randbytes(500), b"", b"{}", b"[]", b"a: &a [*a]", b"null")))
    return path


def with_things_in_the_way(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A link, a pipe or a socket at a path that a command writes: a training, or one of the scripts."""
    draw = seeded(seed, "in the way", name)
    while True:
        command, chosen = draw.choice(["a training", "a training", "a script"]), draw.randrange(2**32)
        make = _training_with if command == "a training" else _script_with
        family = f"link, pipe or socket where files are written, then {command}"
        yield Trial(family, name, f"seed {chosen}", make(bench, name, chosen))


def _training_with(bench: Bench, name: str, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        draw, root, outside = random.Random(chosen), folder / "runs", make_outside(folder)
        state = draw.choice(("new", "unfinished", "unfinished", "finished"))
        run = bench.copied(name, root, unfinished=state == "unfinished")
        whole = only_run(bench.undisturbed(name)[0])
        places = sorted(path.relative_to(whole) for path in whole.rglob("*"))
        if state == "new":
            shutil.rmtree(run)
            run.mkdir()
        place = draw.choice(places)
        done = in_the_way(run / place, draw, outside)
        setting = bench.settings[name]
        ended = bench.run(setting, root)
        if bad := judged(ended, folder, outside):
            return Verdict(bad.kind, f"{state}: {done}\n{bad.evidence}")
        if ended.code:
            return Verdict(REFUSED)
        if state == "finished" and place.parts[0] in ("checkpoints", "metrics.jsonl"):
            return Verdict(ACCEPTED)  # nothing reads them any more
        return compared(bench, setting, root, said=ended.text)

    return action


def _script_with(bench: Bench, name: str, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        draw, outside = random.Random(chosen), make_outside(folder)
        run = bench.copied(name, folder / "runs")
        names = [path.name for path in run.iterdir()]
        script, place = draw.choice(sorted(SCRIPTS)), draw.choice((*WRITTEN, *WRITTEN, *sorted(names)))
        target = folder / place.removeprefix("../") if place.startswith("../") else run / place
        done = in_the_way(target, draw, outside)
        ended = ended_by(folder, script, run)
        return judged_end(ended, folder, outside, f"{script}: {done}")

    return action


def with_junk(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """Every program of the repository, with a path that leads to something else than it takes."""
    draw = seeded(seed, "junk", name)
    while True:
        program, *words = draw.choice(JUNK)
        chosen = draw.randrange(2**32)
        fault = f"{' '.join(words)}, seed {chosen}"
        yield Trial("junk in place of a path", program, fault, _junk_for(bench, name, program, words, chosen))


def _junk_for(bench: Bench, name: str, program: str, words: list[str], chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        draw, outside = random.Random(chosen), make_outside(folder)
        run = bench.copied(name, folder / "runs")
        path = junk(folder / "junk", draw)
        filled = [word.format(run=run, out=folder / "out", junk=path) for word in words]
        if program == "train_lm":
            setting = bench.settings[name]
            quoted = [re.sub(r"=(.*)", lambda match: f"='{match[1]}'", word) for word in filled]
            ended = in_child(lambda: setting.train(*setting.arguments, *quoted), folder=folder)
        else:
            ended = in_child(lambda: executed(program, *filled), folder=folder)
        return judged_end(ended, folder, outside, f"{path!a}")

    return action
