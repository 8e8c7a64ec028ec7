"""Overrides that nobody should give, and streams that are not there."""

import io
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.children import in_child, limit_memory
from faults.settings import Bench
from faults.trials import ACCEPTED, REFUSED, SILENT, UNTRAINED, Trial, Verdict, compared, crashed, resumed, seeded
from tests.helpers.command_line import IMAGES, MODEL, REPOSITORY, train_lm, train_vit

NUMBERS = ("nan", "inf", "-inf", "-1", "0", "1", "2", "3", "0.5", "1.5", "1e308", "-1e308", "1e-320")
HUGE = ("9223372036854775807", "9223372036854775808", "1e18", "100000000000000000000000")
WORDS = ("null", "true", "''", "text", "'a b'", "é", "'\\n'", "../x", "/", "~", "???")
INTERPOLATIONS = (
    "${seed}",
    "'${..seed}'",
    "${nowhere}",
    "'${'",
    "${oc.env:HOME}",
    "${oc.env:NOWHERE}",
    "${optim}",
    "${a:b}",
)
LISTS = ("[]", "{}", "[1,2]", "[nan]", "[[]]", "{a: 1}", "[0,0]", "[5,3]", "[-1]", "[1e300,2]")
CODES = "\x00\x1b\n\t\u202e"
LEFT_OUT = ("hydra", "runs_root", "run_dir", "data.root", "data.cache", "data.hub")  # places (places.py) and networks
OF_HYDRA = (
    *("hydra.job.name", "hydra.job.chdir", "hydra.job.num", "hydra.verbose", "hydra.mode", "hydra.output_subdir"),
    *("hydra.sweep.subdir", "hydra.sweeper.max_batch_size", "hydra.launcher", "hydra.help.template", "hydra.nothing"),
)


def keys_of(script: str) -> list[str]:
    """Every key of the composed config, without those of the attention."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from fourierformer.config import flatten

    with initialize_config_dir(str(REPOSITORY / "configs"), version_base="1.3"):
        values = OmegaConf.to_container(compose(script))
    return [key for key, _ in flatten(values) if not key.startswith((*LEFT_OUT, "attention."))]


def knobs_of_attentions() -> dict[str, list[str]]:
    """The keys of every attention that has any besides its name."""
    from omegaconf import OmegaConf

    found = {}
    for path in sorted((REPOSITORY / "configs/attention").glob("*.yaml")):
        config = OmegaConf.load(path)
        found[path.stem] = [f"attention.{key}" for key in config if key not in ("name", "defaults")]
    return {name: knobs for name, knobs in found.items() if knobs}


def fuzzed_overrides(bench: Bench, seed: str) -> Iterator[Trial]:
    """A plan with one or two values drawn at random; what the plan accepts is trained, if it is not large. Of the keys,
    every other one is of an attention."""
    draw = seeded(seed, "overrides")
    keys = {script: in_child(lambda script=script: keys_of(script)).value for script in ("train_lm", "train_vit")}
    knobs = in_child(knobs_of_attentions).value
    groups = ("attention", "model", "data", "optim", "schedule", "trainer", "experiment", "variant", "debug", "scale")
    while True:
        script = draw.choice(sorted(keys))
        attention = draw.choice(sorted(knobs))
        chosen = [f"attention={attention}"]
        for _ in range(draw.choice((1, 1, 1, 2))):
            of_attention = knobs[attention] if draw.random() < 0.5 else keys[script]
            kind = draw.random()
            key = draw.choice(groups if kind < 0.1 else OF_HYDRA if kind < 0.15 else of_attention)
            chosen.append(f"{key}={_value(draw)}")
        if draw.random() < 0.1:
            chosen = ["-m", *chosen[:-1], f"{chosen[-1]},{_value(draw)}"]
        yield Trial("override", script, " ".join(map(ascii, chosen)), _with_overrides(bench, script, chosen))


def _value(draw: random.Random) -> str:
    kind = draw.random()
    if kind < 0.5:
        return draw.choice(NUMBERS)
    if kind < 0.6:
        return draw.choice(HUGE)
    if kind < 0.95:
        return draw.choice((*WORDS, *LISTS, *INTERPOLATIONS))
    return "".join(draw.choice(f"{CODES}ab=,:[]{{}}'\"") for _ in range(draw.randint(1, 6)))


def _with_overrides(bench: Bench, script: str, chosen: list[str]) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        train = {"train_lm": train_lm, "train_vit": train_vit}[script]
        base = (*MODEL, *bench.data) if script == "train_lm" else (*IMAGES, "data.workers=0")
        base = [part for part in base if part != "attention=softmax"]
        command = (*base, *chosen, f"runs_root={folder / 'runs'}")

        def limited(*more: str) -> int:
            limit_memory()
            return train(*command, *more)

        planned = in_child(lambda: limited("dry_run=true"), folder=folder, seconds=40)
        if planned.code or planned.code is None:
            return crashed(planned) or Verdict(REFUSED)
        if any(value in text for text in chosen for value in (*HUGE, "1e308")):
            return Verdict(UNTRAINED)  # it may take as long as it likes
        trained = in_child(limited, folder=folder, seconds=40)
        if trained.code is None:
            return Verdict(UNTRAINED)  # an accepted value may make a training long
        return crashed(trained) or _sensible(trained.code, folder / "runs")

    return action


def _sensible(code: int, root: Path) -> Verdict:
    """A run that says it is done has numbers."""
    import json

    if code:
        return Verdict(REFUSED)
    for summary in root.rglob("summary.json"):
        results = json.loads(summary.read_text())["results"]
        losses = [numbers.get("nll", 0.0) for protocols in results.values() for numbers in protocols.values()]
        if not all(map(math.isfinite, losses)):
            return Verdict(SILENT, f"completed with a loss of {losses}")
    return Verdict(ACCEPTED)


STREAMS: dict[str, Callable[[], None]] = {}


def stream(function: Callable[[], None]) -> Callable[[], None]:
    STREAMS[function.__name__.replace("_", " ")] = function
    return function


@stream
def ascii_output() -> None:
    _encoded("ascii")


@stream
def latin_1_output() -> None:
    _encoded("latin-1")


def _encoded(encoding: str) -> None:
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        _become(name, open(descriptor, "w", encoding=encoding, closefd=False))  # noqa: SIM115


def _become(name: str, stream: io.TextIOBase | None) -> None:
    """As if the process had been started with it."""
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


@stream
def stdin_closed() -> None:
    os.close(0)
    _become("stdin", None)


@stream
def stdout_closed() -> None:
    os.close(1)
    _become("stdout", None)


@stream
def stderr_closed() -> None:
    os.close(2)
    _become("stderr", None)


@stream
def all_closed() -> None:
    stdin_closed()
    stdout_closed()
    stderr_closed()


@stream
def stdout_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


@stream
def stderr_full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


@stream
def both_full() -> None:
    stdout_full()
    stderr_full()


@stream
def reader_gone() -> None:
    """As `| head` leaves it."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


def broken_streams(bench: Bench, name: str, seed: str) -> Iterator[Trial]:
    """A whole run with each of them; it has to end, and its files are those of any run."""
    for kind in STREAMS:
        yield Trial("stream", name, kind, _with_stream(bench, name, kind))


def _with_stream(bench: Bench, name: str, kind: str) -> Callable[[Path], Verdict]:
    def action(folder: Path) -> Verdict:
        setting, root = bench.settings[name], folder / "runs"

        def train() -> int:
            STREAMS[kind]()
            return setting.train(*setting.arguments, f"runs_root={root}")

        ended = in_child(train)
        silent = kind in ("stderr full", "both full", "stderr closed", "all closed")  # an error cannot be seen there
        if not silent and (bad := crashed(ended)):
            return bad
        if not list(root.rglob("summary.json")):
            return Verdict(SILENT, f"the training did not end: exit code {ended.code}\n{ended.text[-3000:]}")
        first = compared(bench, setting, root)
        return first if not first.good else resumed(bench, setting, root)

    return action
