"""Files that somebody else has made, with checksums that fit them, links and pipes where files are written, and folders
that are no runs at all: read by every script, and trained on."""

import json
import math
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml

from faults.children import Ended, executed, in_child
from faults.crafted import CRAFTED, seal
from faults.damage import BYTES, HOLE, KINDS, file_of, listen
from faults.settings import Bench
from faults.trials import (
    ACCEPTED,
    LEAKED,
    NAMED,
    OUTSIDE,
    REFUSED,
    SAME,
    SILENT,
    Trial,
    Verdict,
    compared,
    crashed,
    seeded,
)
from fourierformer.config import config_hash, from_yaml
from fourierformer.files import CHECKSUM, checksum
from fourierformer.tracking.jsonl import JsonlTracker, read_lines
from tests.helpers.command_line import only_run

SECRET = "hf_" + 5 * "a1b2"  # in the environment, and in no file: not as a word, which a diff of this file would have
ESCAPES = "\x1b]0;renamed\x07\x1b[2J\u202e"
# what a changed value may be; {outside} is a folder that no command has to do with
VALUES: tuple = (
    *(None, True, -1, 0, 7, 2**63, 10**30, 1e308, math.nan, -0.5, "", "text", "7", "a" * 5000, "\ud800", "\0", ESCAPES),
    *([], {}, [[]], [1, "a", None], {"a": {"b": []}}, ["x"] * 3, "${oc.env:HF_TOKEN}", "${seed}", "<script>alert(1)"),
    *("=1+1", "--output={outside}/file", "{outside}/file", "../../outside/file", "4" * 40),
)
SCRIPTS = {
    "evaluate": ("{run}", "--device", "cpu", "--limit", "50"),
    "export": ("{run}", "--to", "{out}/model"),
    "generate": ("{run}", "--device", "cpu", "--tokens", "3"),
    "head_redundancy": ("{run}", "--sequences", "2"),
    "make_tables": ("{run}",),
    "report": ("{run}",),
    "robustness": ("{run}", "--limit", "50", "--levels", "0.1", "--out", "{out}/robustness"),
    "show_attention": ("{run}", "--sequences", "2"),
    "sweep_status": ("{run}",),
}
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
    ("scripts/robustness", "{run}", "--limit", "50", "--out", "{junk}"),
    ("scripts/show_attention", "{run}", "--out", "{junk}"),
    ("scripts/tune", "lm", "data.root={junk}"),
    ("scripts/validate_outside", "--only", "zoology", "--suites", "{junk}"),
    ("train_lm", "runs_root={junk}"),
    ("train_lm", "run_dir={junk}"),
    ("train_lm", "data.root={junk}", "runs_root={out}"),
    ("train_lm", "data.cache={junk}", "runs_root={out}"),
)


# -- what is harmed -------------------------------------------------------------------------------------------------


def foreign_json(run: Path, draw: random.Random, outside: Path) -> str:
    path = draw.choice(sorted(run.glob("*.json")))
    values = json.loads(path.read_text())
    values.pop(CHECKSUM, None)
    what = change(values, draw, outside)
    path.write_text(json.dumps(values | {CHECKSUM: checksum(values)}))
    return f"{path.name}: {what}"


def foreign_config(run: Path, draw: random.Random, outside: Path) -> str:
    """With the hash of the changed config in every file that has one."""
    values = from_yaml(run / "config.yaml")
    what = change(values, draw, outside)
    try:
        text = yaml.safe_dump(values, allow_unicode=True)
        text.encode()
    except ValueError:
        text = yaml.safe_dump(values)
    (run / "config.yaml").write_text(text)
    for name in ("meta.json", "summary.json"):
        if (run / name).is_file():
            stored = json.loads((run / name).read_text()) | {"config_hash": config_hash(values)}
            stored.pop(CHECKSUM, None)
            (run / name).write_text(json.dumps(stored | {CHECKSUM: checksum(stored)}))
    for checkpoint in run.glob("checkpoints/step_*"):
        state = torch.load(checkpoint / "state.pt", weights_only=True)
        torch.save(state | {"config_hash": config_hash(values)}, checkpoint / "state.pt")
        seal(checkpoint)
    return f"config.yaml: {what}"


def foreign_log(run: Path, draw: random.Random, outside: Path) -> str:
    """Rows of metrics.jsonl, written as the tracker writes them."""
    path = run / "metrics.jsonl"
    rows = read_lines(path.read_bytes()).rows
    what = change(rows, draw, outside)
    path.unlink()
    tracker = JsonlTracker(path)
    for row in rows:
        if isinstance(row, dict):
            tracker.log(row)
    tracker.close(0)
    return f"metrics.jsonl: {what}"


def foreign_manifest(run: Path, draw: random.Random, outside: Path) -> str:
    path = draw.choice(sorted(run.glob("checkpoints/*/MANIFEST.json")))
    values = json.loads(path.read_text())
    what = change(values, draw, outside)
    path.write_text(json.dumps(values))
    return f"{path.parent.name}: {what}"


def foreign_state(run: Path, draw: random.Random, outside: Path) -> str:
    kind = draw.choice(sorted(CRAFTED))
    for checkpoint in run.glob("checkpoints/step_*"):
        CRAFTED[kind](checkpoint / "state.pt", outside / "code ran", draw)
        seal(checkpoint)
    return kind


def change(values: dict | list, draw: random.Random, outside: Path) -> str:
    """Replace one value, at any depth."""
    if not values:
        return "nothing"
    key = draw.choice(sorted(values)) if isinstance(values, dict) else draw.randrange(len(values))
    inner = values[key]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
        return f"{key}.{change(inner, draw, outside)}"
    new = draw.choice(VALUES)
    values[key] = new.replace("{outside}", str(outside)) if isinstance(new, str) else new
    return f"{key}={new!a}"


FOREIGN = (foreign_json, foreign_json, foreign_config, foreign_config, foreign_log, foreign_manifest, foreign_state)


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


def junk(path: Path, run: Path, draw: random.Random) -> Path:
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


# -- trials ---------------------------------------------------------------------------------------------------------


def read_by_scripts(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A finished run with a changed file, in turn with fitting checksums and without; then one of the scripts."""
    draw = seeded(seed, "scripts", name)
    while True:
        script, chosen = draw.choice(sorted(SCRIPTS)), draw.randrange(2**32)
        harm = draw.choice(FOREIGN) if draw.random() < 0.5 else draw.choice((*BYTES, *KINDS))
        family = "foreign values with valid checksums" if harm in FOREIGN else "damaged file of a finished run"
        action = _script_on(bench, name, script, harm, chosen)
        yield Trial(f"{family}, then a script", script, f"{name}: {harm.__name__}, seed {chosen}", action)


def _script_on(bench: Bench, name: str, script: str, harm: Callable, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        expected, draw, outside = _printed(bench, name, script), random.Random(chosen), make_outside(folder)
        run = bench.copied(name, folder / "runs")
        if harm in FOREIGN:
            harm(run, draw, outside)
        else:
            names = [path.name for path in run.iterdir() if path.is_file()]
            harm(file_of(run, draw.choice([*sorted(names), "MANIFEST.json", "state.pt"]), draw), draw)
        ended = _ended(folder, script, run)
        if bad := judged(ended, folder, outside):
            return bad
        if ended.code:
            return Verdict(REFUSED)
        if harm in FOREIGN:
            return Verdict(ACCEPTED)
        if _words(ended, folder) == expected:
            return Verdict(SAME)
        named = re.search(r"damaged|match|cannot be read|left out|unfinished|missing|no plain file", ended.text)
        return Verdict(NAMED) if named else Verdict(SILENT, f"{expected}\n{ended.text[-4000:]}")

    return action


def _printed(bench: Bench, name: str, script: str) -> str:
    """What a script prints about the undisturbed run."""
    key = f"{script} of {name}"
    if key not in bench.shown:
        folder = bench.folder / key.replace(" ", "-")
        ended = _ended(folder, script, bench.copied(name, folder / "runs"))
        bench.shown[key] = [_words(ended, folder)]
    return bench.shown[key][0]


def _ended(folder: Path, script: str, run: Path) -> Ended:
    words = [word.format(run=run, out=folder / "out") for word in SCRIPTS[script]]
    return in_child(lambda: executed(f"scripts/{script}", *words), folder=folder)


def _words(ended: Ended, folder: Path) -> str:
    """The output without the folder of the trial, and without the widths that depend on its name."""
    return re.sub(r"\s+|-{3,}", " ", ended.output.replace(str(folder), ""))


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
        ended = in_child(lambda: _limited_training(setting, root))
        if bad := judged(ended, folder, outside):
            return Verdict(bad.kind, f"{state}: {done}\n{bad.evidence}")
        if ended.code:
            return Verdict(REFUSED)
        if state == "finished" and place.parts[0] == "checkpoints":
            return Verdict(ACCEPTED)  # nothing reads them any more
        return compared(bench, setting, root, said=ended.text)

    return action


def _limited_training(setting, root: Path) -> int:
    return setting.train(*setting.arguments, f"runs_root={root}")


def _script_with(bench: Bench, name: str, chosen: int) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        draw, outside = random.Random(chosen), make_outside(folder)
        run = bench.copied(name, folder / "runs")
        names = [path.name for path in run.iterdir()]
        script, place = draw.choice(sorted(SCRIPTS)), draw.choice((*WRITTEN, *WRITTEN, *sorted(names)))
        target = folder / place.removeprefix("../") if place.startswith("../") else run / place
        done = in_the_way(target, draw, outside)
        ended = _ended(folder, script, run)
        if bad := judged(ended, folder, outside):
            return Verdict(bad.kind, f"{script}: {done}\n{bad.evidence}")
        return Verdict(REFUSED) if ended.code else Verdict(ACCEPTED)

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
        path = junk(folder / "junk", run, draw)
        filled = [word.format(run=run, out=folder / "out", junk=path) for word in words]
        if program == "train_lm":
            setting = bench.settings[name]
            quoted = [re.sub(r"=(.*)", lambda match: f"='{match[1]}'", word) for word in filled]
            ended = in_child(lambda: setting.train(*setting.arguments, *quoted), folder=folder)
        else:
            ended = in_child(lambda: executed(program, *filled), folder=folder)
        if bad := judged(ended, folder, outside):
            return Verdict(bad.kind, f"{path!a}\n{bad.evidence}")
        return Verdict(REFUSED) if ended.code else Verdict(ACCEPTED)

    return action


def foreign_exports(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """An exported model whose config.json or data.json was changed, or which was damaged; then from_pretrained."""
    draw = seeded(seed, "exports", name)
    while True:
        target, chosen = draw.choice(("config.json", "data.json", "model.safetensors")), draw.randrange(2**32)
        yield Trial(
            "foreign or damaged export, then loaded",
            target,
            f"{name}: seed {chosen}",
            _loaded(bench, name, target, chosen),
        )


def _loaded(bench: Bench, name: str, target: str, chosen: int) -> Callable[[Path], Verdict]:
    def load(folder: Path) -> int:
        import fourierformer
        from faults.children import limit_memory
        from fourierformer.runs.console_io import exit_on_user_error

        limit_memory()
        try:
            with exit_on_user_error():
                fourierformer.from_pretrained(folder, "cpu")
        except SystemExit as end:
            return int(end.code)  # type: ignore[arg-type]
        return 0

    def action(folder: Path) -> Verdict:
        draw, outside = random.Random(chosen), make_outside(folder)
        ended = _ended(folder, "export", bench.copied(name, folder / "runs"))
        if ended.code:
            return Verdict(REFUSED)  # of a task that is not exported
        path = folder / "out" / "model" / target
        if target.endswith(".json") and draw.random() < 0.7:
            values = json.loads(path.read_text())
            change(values, draw, outside)
            path.write_text(json.dumps(values))
        else:
            draw.choice((*BYTES, *KINDS))(path, draw)
        ended = in_child(lambda: load(path.parent))
        return judged(ended, folder, outside) or Verdict(REFUSED if ended.code else ACCEPTED)

    return action


def make_outside(folder: Path) -> Path:
    """Files that no command has to do with."""
    outside = folder / "outside"
    (outside / "folder").mkdir(parents=True)
    for path in (outside / "file", outside / "folder" / "file"):
        path.write_text("of somebody else\n")
    return outside


def judged(ended: Ended, folder: Path, outside: Path) -> Verdict | None:
    """The verdict on a command that crashed, changed a file outside, or showed a secret or a control character."""
    if bad := crashed(ended):
        return bad
    found = sorted(str(path.relative_to(outside)) for path in outside.rglob("*"))
    contents = {path.read_text() for path in outside.rglob("*") if path.is_file()}
    if found != ["file", "folder", "folder/file"] or contents != {"of somebody else\n"}:
        return Verdict(OUTSIDE, f"{found}, {contents}\n{ended.text[-3000:]}")
    if re.search("[\x07\x1b\u202e]", ended.text):
        return Verdict(LEAKED, f"a control character: {ended.text[-3000:]!a}")
    files = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**24)
    if SECRET in ended.text or (named := [path for path in files if SECRET.encode() in path.read_bytes()]):
        return Verdict(LEAKED, f"a secret, in {named if SECRET not in ended.text else 'the output'}")
    return None
