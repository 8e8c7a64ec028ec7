"""What a measurement under attack is: its strength, labels and first points, its place in the file of a run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fourierformer.analysis import robustness
from fourierformer.analysis.attacks import ATTACKS, ball_around, perturbation, random_starts
from fourierformer.analysis.robustness import EPS, SHARES, Measurement, attacked, measured, planned, saved
from fourierformer.errors import SetupError
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from tests.analysis.test_attacks import MEAN, SHAPE, STD, curved, normalised_images

IMAGES = Measurement(split="valid", protocol="", limit=None)
TEXT = Measurement(split="test", protocol="sliding", limit=100)


def of_images(attack: str, **changes) -> Measurement:
    usual = {"attack": attack, "level": 2.0, "space": "normalised", "labels": "true"}
    return replace(IMAGES, **usual | changes)


def changes_of(model, wanted, images, labels, rows=None) -> torch.Tensor:
    rows = torch.arange(len(images)) if rows is None else rows
    return attacked(model, wanted, MEAN, STD, images, labels, rows) - images


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("space", ["normalised", "pixel"])
def test_a_level_counts_255ths_of_its_space(attack, space):
    """51 / 255 is a fifth: of a standard deviation, or of the range of pixels."""
    images, labels = normalised_images(4), torch.arange(4)
    change = changes_of(curved(), of_images(attack, level=51.0, space=space), images, labels).abs()
    unit = torch.tensor(STD) if space == "pixel" else torch.ones(3)
    assert (change.amax((0, 2, 3)) * unit).tolist() == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("attack", ATTACKS)
def test_labels_are_those_of_the_data_or_the_models_own(attack):
    model, images = curved(), normalised_images(6)
    own = model(images).argmax(1)
    wrong = (own + 1) % 5  # no image is of the class that the model sees in it
    true = changes_of(model, of_images(attack), images, wrong)
    predicted = changes_of(model, of_images(attack, labels="predicted"), images, wrong)
    assert torch.equal(predicted, changes_of(model, of_images(attack), images, own))
    assert not torch.equal(predicted, true)


def test_pgd_begins_where_its_seed_and_the_number_of_the_image_say_and_fgm_at_the_image():
    model, images, labels = curved(), normalised_images(3), torch.arange(3)
    ball = ball_around(images, 2 / 255, "normalised", MEAN, STD)
    for rows, seed in ((torch.tensor([7, 8, 9]), 0), (torch.tensor([9, 8, 7]), 0), (torch.tensor([7, 8, 9]), 3)):
        start = random_starts(images, rows, seed)
        found = changes_of(model, of_images("pgd", attack_seed=seed), images, labels, rows)
        expected = perturbation(model, images, labels, ATTACKS["pgd"], ball, start)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        fgm = changes_of(model, of_images("fgm", attack_seed=seed), images, labels, rows)
        torch.testing.assert_close(fgm, perturbation(model, images, labels, ATTACKS["fgm"], ball), rtol=0, atol=1e-12)


def test_attacks_are_those_of_the_papers():
    """One step of eps from the image; twenty of 0.15 eps from a random point."""
    assert {name: (a.steps, a.step, a.random_start) for name, a in ATTACKS.items()} == {
        "fgm": (1, 1.0, False),
        "pgd": (20, 0.15, True),
    }


def parts_of(kind, unit="word"):
    objective = kind.__new__(kind)
    objective.corpus = SimpleNamespace(unit=unit)
    return SimpleNamespace(objective=objective)


def plan(parts, clean, attacks=None, levels=None, **changes):
    return planned(parts, Path("run"), clean, attacks, levels, **{"seed": 4, "space": None, "labels": None} | changes)


def test_a_plan_begins_with_the_clean_number_and_each_attack_has_rising_levels():
    clean, *found = plan(parts_of(ClassificationObjective), IMAGES)
    assert clean == IMAGES
    assert [(one.attack, one.level) for one in found] == [(name, eps) for name in ("fgm", "pgd") for eps in EPS]
    assert {(one.attack_seed, one.space, one.labels) for one in found} == {(4, "normalised", "predicted")}
    _, *chosen = plan(
        parts_of(ClassificationObjective), IMAGES, ["pgd", "pgd"], [3.0, 1.0, 3.0], space="pixel", labels="true"
    )
    assert [(one.attack, one.level, one.space, one.labels) for one in chosen] == [
        ("pgd", 1.0, "pixel", "true"),
        ("pgd", 3.0, "pixel", "true"),
    ]


def test_texts_of_words_alone_have_words_to_swap():
    _, *found = plan(parts_of(LanguageObjective), TEXT)
    assert [(one.attack, one.level, one.space) for one in found] == [("word_swap", share, "") for share in SHARES]
    with pytest.raises(SetupError, match="cannot be attacked"):
        plan(parts_of(LanguageObjective, unit="byte"), TEXT)


def test_a_number_is_measured_once_for_each_step_of_the_weights_and_others_are_kept(tmp_path, monkeypatch):
    asked = []

    def measure(parts, wanted, on_progress):
        asked.append(wanted)
        return {"nll": float(len(asked))}

    monkeypatch.setattr(robustness, "measure", measure)
    clean, attack = TEXT, replace(TEXT, attack="word_swap", level=0.1, attack_seed=1)
    done = [(clean, 10), (attack, 10), (clean, 10), (replace(attack, attack_seed=2), 10), (clean, 20), (attack, 10)]
    found = [measured(None, tmp_path, step, wanted, None) for wanted, step in done]
    assert [before for _, before in found] == [False, False, True, False, False, True]
    assert [entry["nll"] for entry, _ in found] == [1.0, 2.0, 1.0, 3.0, 4.0, 2.0]
    assert [(entry["attack"], entry["attack_seed"], entry["step"]) for entry in saved(tmp_path)] == [
        *(("clean", 0, 10), ("word_swap", 1, 10), ("word_swap", 2, 10), ("clean", 0, 20)),
    ]


def test_gradients_of_an_attack_leave_the_weights_without_any():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).double()
    with torch.no_grad():
        changes_of(model, of_images("fgm"), torch.zeros(2, *SHAPE, dtype=torch.float64), torch.arange(2))
    assert all(parameter.grad is None for parameter in model.parameters())
