"""The runs that are harmed: so small that a whole one takes a second, and an undisturbed one of each."""

import contextlib
import functools
import gc
import hashlib
import io
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from faults.children import Ended, in_child
from fourierformer.runs.console_io import exit_on_user_error
from tests.helpers.command_line import IMAGES, MODEL, only_run, rows, started, train_lm, train_vit

STEPS = ("trainer.steps=6", "trainer.eval_every=3", "trainer.save_every=2")
# what a state may have otherwise: the offset counts digits of rates; a stop between a step and its evaluation saves
# before the evaluation, which is then made again
OTHERWISE = ("metrics_offset", "metrics_check", "progress")


@dataclass(frozen=True)
class Setting:
    """A training: its command without runs_root."""

    name: str
    train: Callable[..., int]
    arguments: tuple[str, ...]


@dataclass
class Bench:
    """A folder with a text, its prepared copy, and a finished run of every setting that was asked for."""

    folder: Path
    finished: dict[str, tuple[Path, dict]] = field(default_factory=dict)
    shown: dict[str, list[str]] = field(default_factory=dict)  # what programs print about the finished runs

    @cached_property
    def data(self) -> tuple[str, ...]:
        """Overrides that choose the text, which is prepared at their first use."""
        text = self.folder / "text"
        write_text(text)
        chosen = ("data=wikitext2", f"data.root={text}", "data.expect=null", f"data.cache={self.folder / 'cache'}")
        ended = in_child(lambda: train_lm(*MODEL, *chosen, "trainer.steps=1", f"runs_root={self.folder / 'first'}"))
        assert ended.code == 0, ended.text
        return chosen

    @cached_property
    def settings(self) -> dict[str, Setting]:
        language, vision = (*MODEL, *self.data, *STEPS), (*IMAGES, *STEPS, "data.workers=0")
        averaged = ("trainer.precision=bf16", "trainer.ema_decay=0.9")
        lm, vit = without_charts(train_lm), without_charts(train_vit)
        recall = ("experiment=recall", "attention=softmax", "data.length=24", "data.pairs=8", "data.queries=null")
        regression = ("experiment=regression", "attention=gaussian", "data.context=8", "data.queries=4")
        drawn = (*STEPS, "global_batch_size=4", "data.held_out=20", "schedule.warmup_steps=1")
        small = ("attention=softmax", "model.layers=1", "model.dim=16", "model.heads=2", "model.inner=16")
        masked = ("experiment=builtin_mlm", "debug=smoke", "model.length=8", *small, *self.data, *STEPS)
        seq2seq = ("experiment=builtin_seq2seq", "debug=smoke_seq2seq", *small, "data.held_out=40", *STEPS)
        known = (
            Setting("language", lm, language),
            Setting("language, bf16, averaged", lm, (*language, *averaged, "model.dropout=0.1")),
            Setting("vision", vit, vision),
            Setting("vision, bf16, averaged", vit, (*vision, *averaged)),
            Setting("masked", lm, masked),
            Setting("seq2seq", lm, seq2seq),
            Setting("recall", lm, (*recall, *drawn)),
            Setting("regression", lm, (*regression, *drawn)),
            Setting("language, 2 processes", by_two(train_lm), language),
            Setting("vision, 2 processes", by_two(train_vit), vision),
        )
        return {setting.name: setting for setting in known}

    def undisturbed(self, name: str) -> tuple[Path, dict]:
        """(runs_root of a finished run, what it left)."""
        if name not in self.finished:
            root = self.folder / "finished" / name.replace(", ", "-")
            ended = self.run(self.settings[name], root)
            assert ended.code == 0, ended.text
            self.finished[name] = root, left_by(only_run(root))
        return self.finished[name]

    def run(self, setting: Setting, root: Path, *more: str, **child) -> Ended:
        return in_child(lambda: setting.train(*setting.arguments, *more, f"runs_root={root}"), **child)

    def copied(self, name: str, root: Path, *, unfinished: bool = False) -> Path:
        """A copy of the finished run, below `root`; unfinished: as if killed after its checkpoint of step 4."""
        shutil.copytree(self.undisturbed(name)[0], root)
        run = only_run(root)
        if unfinished:
            for late in (*run.glob("checkpoints/step_00000006*"), run / "summary.json", run / "evaluation.json"):
                shutil.rmtree(late) if late.is_dir() else late.unlink(missing_ok=True)
        return run


def without_charts(train: Callable[..., int]) -> Callable[..., int]:
    """The same in a child, with an empty page: its charts take half the time of so small a run, and no fault."""

    @functools.wraps(train)
    def quicker(*arguments: str) -> int:
        from fourierformer.report import page

        page.render = lambda *_: "<html></html>\n"
        return train(*arguments)

    return quicker


def by_two(train: Callable[..., int]) -> Callable[..., int]:
    """The same by two processes, as torchrun keeps them: when one of them fails, the other one is stopped."""

    def shared(*arguments: str) -> int:
        processes = started(2, train.__name__, *arguments)
        while any(process.is_alive() for process in processes):
            time.sleep(0.02)
            if any(process.exitcode for process in processes):
                for process in processes:
                    process.join(5)  # a lost connection is noticed within moments
                    process.terminate()
                    process.join(15)
                    process.kill()
        return max(abs(process.exitcode or 0) for process in processes)

    return shared


def warm_up(bench: Bench) -> None:
    """Imports everything that a run and the programs that read it use, so that no child has to: by one of each."""
    with contextlib.redirect_stdout(io.StringIO()):
        for name in ("language", "vision", "masked", "seq2seq"):
            setting, root = bench.settings[name], bench.folder / "warm" / name
            assert setting.train.__wrapped__(*setting.arguments, f"runs_root={root}") == 0  # type: ignore[attr-defined]
            read_by_programs(root)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at


def read_by_programs(root: Path, page: bool = True) -> int:
    """Tables, the state of the sweep and the page of these runs, as the scripts make them. The highest exit code."""
    from fourierformer.report import write_report
    from fourierformer.results import collect
    from scripts import make_tables, sweep_status

    programs = [lambda: make_tables.main(make_tables.parse()), sweep_status.main]
    if page:
        programs.append(lambda: write_report(collect(root), root / "page.html"))  # without what is committed
    before, worst = sys.argv, 0
    sys.argv = ["program", str(root)]
    for program in programs:
        try:
            with exit_on_user_error():
                program()
        except SystemExit as end:
            worst = max(worst, end.code if isinstance(end.code, int) else 1)
    sys.argv = before
    return worst


def write_text(folder: Path) -> None:
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = [f"word{number}" for number in range(50)] + ["<unk>"]  # into which robustness.py swaps words
    for split, lines in {"train": 300, "valid": 40, "test": 40}.items():
        text = "\n".join(" ".join(draw.choices(words, k=9)) for _ in range(lines))
        (folder / f"wiki.{split}.tokens").write_text(text + "\n")


def left_by(run: Path) -> dict:
    """What a run has left, without what depends on the clock: sha256 of its intact states, rows, results, names of
    files outside checkpoints."""
    complete = sorted(run.glob("checkpoints/step_*"))
    states = {_step(path.name): state_hash(path / "state.pt") for path in complete if is_intact(path)}
    summary = json.loads((run / "summary.json").read_text())
    outside = (path for path in run.rglob("*") if not any(folder in complete for folder in path.parents))
    names = sorted({_step(str(path.relative_to(run))) for path in outside})
    return {"states": states, "rows": rows(run), "results": summary["results"], "files": names}


def _step(name: str) -> str:
    """Without the number of a step that was saved again."""
    return re.sub(r"(step_\d+)-\d+", r"\1", name)


def is_intact(checkpoint: Path) -> bool:
    """Whether the state is the one of which the manifest has the sha256."""
    if not all((checkpoint / name).is_file() for name in ("MANIFEST.json", "state.pt")):  # a pipe would be waited for
        return False
    try:
        manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
        expected = manifest["files"]["state.pt"]["sha256"]
        return hashlib.sha256((checkpoint / "state.pt").read_bytes()).hexdigest() == expected
    except (OSError, ValueError, KeyError, TypeError):
        return False


def state_hash(path: Path) -> str:
    """Of everything that the training goes on from: weights, averages, optimizer, random numbers."""
    digest = hashlib.sha256()

    def add(value) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                if key not in OTHERWISE:
                    digest.update(f"{key}:".encode())
                    add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            digest.update(str(value.dtype).encode() + value.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())

    add(torch.load(path, map_location="cpu", weights_only=True))
    return digest.hexdigest()
