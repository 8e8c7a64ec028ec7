"""Measure a trained run on clean and on attacked data: swapped words for language models, FGM and PGD for images.

Each measurement is written to robustness.json of the run when it is done, and is not repeated. A level is the share of
swapped words (data/text/swap.py), or eps in 255ths (analysis/attacks.py); level 0 is the clean number.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fourierformer.analysis.attacks import ATTACKS, LABELS, SPACES, ball_around, perturbation, random_starts
from fourierformer.errors import SetupError
from fourierformer.files import disk_errors, read_json, write_json
from fourierformer.provenance import commit_and_command
from fourierformer.runs.parts import RunObjects
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.training.objective import Objective, OnProgress
from fourierformer.training.precision import autocast

FILE = "robustness.json"  # in the run directory
CLEAN = "clean"
WORDS = "word_swap"
SHARES = (0.015, 0.025, 0.05, 0.1)  # by default; the first is that of Elliptical attention's released code
EPS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # by default; those of the released scripts


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Which number of a run: all that decides its value, but the weights."""

    split: str
    protocol: str  # of text
    limit: int | None  # tokens or images
    attack: str = CLEAN
    level: float = 0.0
    attack_seed: int = 0  # of swapped words, and of PGD's first points
    space: str = ""  # of images, like `labels`
    labels: str = ""

    @property
    def text(self) -> str:
        """'word_swap 2.5 %', 'fgm 1/255'."""
        if self.attack == CLEAN:
            return CLEAN
        return f"{self.attack} {100 * self.level:g} %" if self.attack == WORDS else f"{self.attack} {self.level:g}/255"


def planned(
    parts: RunObjects, run: Path, clean: Measurement, attacks: list[str] | None, levels: list[float] | None,
    *, seed: int, space: str | None, labels: str | None,
) -> list[Measurement]:  # fmt: skip
    """The clean number, then the number of each attack by rising levels; by default those of the papers. SetupError for
    what cannot be measured of this run."""
    known = attacks_on(parts.objective)
    if not known:
        raise SetupError(f"{run} cannot be attacked: it is no language model of words and no classifier of images")
    if unknown := [attack for attack in attacks or () if attack not in known]:
        raise SetupError(f"{run} is attacked by {' or '.join(known)}, not by {unknown[0]}")
    words = WORDS in known
    if words and (space or labels):
        raise SetupError(f"{run} is a language model: --space and --labels are for images")
    most, meaning = (1, "a share of the words") if words else (255, "eps in 255ths")
    if wrong := [level for level in levels or () if not 0 < level <= most]:
        raise SetupError(f"--levels {wrong[0]:g}: {meaning}, more than 0 and at most {most}")
    space, labels = ("", "") if words else (space or SPACES[0], labels or LABELS[0])
    strengths = sorted(set(levels or (SHARES if words else EPS)))
    return [
        clean,
        *(
            replace(clean, attack=attack, level=level, attack_seed=seed, space=space, labels=labels)
            for attack in dict.fromkeys(attacks or known)
            for level in strengths
        ),
    ]


def attacks_on(objective: Objective) -> tuple[str, ...]:
    if isinstance(objective, LanguageObjective):
        return (WORDS,) if objective.corpus.unit == "word" else ()
    return tuple(ATTACKS) if isinstance(objective, ClassificationObjective) else ()


def measured(
    parts: RunObjects, run: Path, step: int, wanted: Measurement, on_progress: OnProgress
) -> tuple[dict, bool]:
    """(the entry of a measurement in robustness.json, whether it was there before)"""
    identity = asdict(wanted) | {"step": step}
    if known := next((entry for entry in saved(run) if identity.items() <= entry.items()), None):
        return known, True
    origin = commit_and_command()  # an attack takes hours
    entry = identity | measure(parts, wanted, on_progress) | origin
    with disk_errors(run / FILE):  # read again: another process may have measured something meanwhile
        write_json(run / FILE, {"schema": 1, "measured": [*saved(run), entry]})
    return entry, False


def measure(parts: RunObjects, wanted: Measurement, on_progress: OnProgress) -> dict[str, float | int]:
    """The numbers of one measurement, as `Objective.measure` gives them."""
    objective, split = parts.objective, wanted.split
    model: Any = parts.model
    poll = lambda: None  # noqa: E731 (no signal is waited for)
    with autocast(parts.device, parts.trainer.precision):
        if isinstance(objective, LanguageObjective):
            seed, protocol, share = wanted.attack_seed, wanted.protocol, wanted.level
            return objective.measure_swapped(
                model, split, protocol, share, seed=seed, poll=poll, on_progress=on_progress
            )
        assert isinstance(objective, ClassificationObjective)  # `planned` refuses others
        if wanted.attack == CLEAN:
            return objective.measure(model, split, wanted.protocol, poll, on_progress)
        attack = partial(attacked, model, wanted, objective.mean, objective.std)
        return objective.measure_attacked(model, split, attack, poll, on_progress)


def attacked(
    model: nn.Module,
    wanted: Measurement,
    mean: list[float],
    std: list[float],
    images: Tensor,
    labels: Tensor,
    rows: Tensor,
) -> Tensor:
    """Images of a batch, normalised by mean and std, after the attack; `rows` are their numbers in the split."""
    attack, eps = ATTACKS[wanted.attack], wanted.level / 255
    ball = ball_around(images, eps, wanted.space, mean, std)
    if wanted.labels == "predicted":
        labels = model(images).argmax(1)
    start = random_starts(images, rows, wanted.attack_seed) if attack.random_start else None
    return images + perturbation(model, images, labels, attack, ball, start)


def saved(run: Path) -> list[dict]:
    """The measurements in robustness.json; none before the first."""
    found = (read_json(run / FILE) or {}).get("measured")
    return found if isinstance(found, list) else []
