"""The paper's trainings with random data: configs from their YAML files, the real loop, no data set, no Hydra.

A machine for a quick look at a GPU has torch, triton and timm, and often neither Hydra nor OmegaConf; so the files are
composed here. A test holds that Hydra composes the same values.
"""

import itertools
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
import yaml

from fourierformer import attention
from fourierformer.data.images.batches import ImageBatch
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.models.config import LMConfig, ViTConfig
from fourierformer.models.lm import WordLM
from fourierformer.models.vit import build_vit
from fourierformer.provenance import REPOSITORY
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.training.average import MovingAverage
from fourierformer.training.config import TrainerConfig
from fourierformer.training.loop import Fit
from fourierformer.training.optim import OptimConfig, build_optimizer
from fourierformer.training.precision import set_matmul_precision
from fourierformer.training.processes import Processes

CONFIGS = REPOSITORY / "configs"
SLICES = 4  # of random tokens, each one step long


@dataclass(frozen=True)
class Recipe:
    """One of the paper's trainings, as one GPU runs it."""

    script: str  # whose config it is: train_lm or train_vit
    experiment: str
    batch: int  # sequences or images in a step
    whole_steps: int  # steps of this batch that the paper's run amounts to


RECIPES = {
    "lm_small": Recipe("train_lm", "wt103_small", batch=96, whole_steps=500_000),
    "lm_medium": Recipe("train_lm", "wt103_medium", batch=56, whole_steps=400_000),
    # 300 epochs of 1,251 steps of 1,024 images, on four GPUs with 256 images each
    "deit_tiny": Recipe("train_vit", "imagenet_deit_tiny", batch=256, whole_steps=300 * 1251 * 4),
}


class Yaml(yaml.SafeLoader):
    """Reads 1e-6 as a number, as OmegaConf does; YAML 1.1 wants a point in it."""


Yaml.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read(name: str) -> dict:
    return yaml.load((CONFIGS / f"{name}.yaml").read_text(), Yaml)


def compose(script: str, experiment: str, **chosen: str) -> dict:
    """{"model": {...}, "global_batch_size": 96, ...} as Hydra composes them for script, experiment=... and `chosen`.

    Understands what these files use: a script's list of groups, an experiment before it, and its choices of groups.
    """
    experiments = [experiment]
    while parent := _parent(experiments[0]):
        experiments.insert(0, parent)
    groups = _choices(read(script)["defaults"])
    for name in experiments:
        groups |= _choices(read(f"experiment/{name}")["defaults"])
    values: dict = {}
    for source in ("base", script):
        _merge(values, read(source))
    for group, option in (groups | chosen).items():
        if option and group not in ("experiment", "scale"):  # the one is merged last, the other is for sweeps
            _merge(values, {group: read(f"{group}/{option}")})
    for name in experiments:
        _merge(values, read(f"experiment/{name}"))
    for key in ("defaults", "hydra"):
        values.pop(key, None)
    return values


def _parent(experiment: str) -> str | None:
    """The experiment that this one builds on: the plain name in its defaults."""
    return next((d for d in read(f"experiment/{experiment}")["defaults"] if isinstance(d, str) and d != "_self_"), None)


def _choices(defaults: list) -> dict[str, str | None]:
    chosen = {key: value for entry in defaults if isinstance(entry, dict) for key, value in entry.items()}
    chosen = {key.removeprefix("override").strip(" /"): value for key, value in chosen.items()}
    return {group: option for group, option in chosen.items() if not group.startswith("hydra")}


def _merge(values: dict, more: dict) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def start(recipe: Recipe, chosen: str, precision: str, device: torch.device, micro: int, *, small: bool) -> Fit:
    """The training loop at step 0 with the attention `chosen`, in micro-batches of so many sequences or images.

    On a GPU with torch.compile, as a training there. `small` shrinks model and data to what a test can run.
    """
    values = compose(recipe.script, recipe.experiment, attention=chosen)
    lengths = {"steps": recipe.whole_steps, "epochs": None, "micro_batch_size": micro}
    trainer = TrainerConfig(**values["trainer"] | lengths | {"precision": precision})
    optim = OptimConfig(**values["optim"])
    knobs = {key: value for key, value in values["attention"].items() if key != "name"}
    set_matmul_precision(precision)
    torch.manual_seed(1)
    parts = images_of if recipe.script == "train_vit" else language_of
    model, objective = parts(values, partial(attention.build, chosen, **knobs), recipe.batch, micro, device, small)
    if device.type == "cuda":
        torch._dynamo.config.suppress_errors = True  # as trainer.compile=auto: what cannot be compiled runs as it is
        model.compile_blocks()
    fit = Fit(
        objective=objective,
        model=model,
        ema=None if trainer.ema_decay is None else MovingAverage(model, trainer.ema_decay),
        optimizer=build_optimizer(model, optim),
        rate=lambda step: optim.lr,
        config=trainer,
        seed=1,
        device=device,
        tracker=None,
        checkpoints=None,
        stop=SimpleNamespace(poll=lambda: None),
    )
    fit.model.train()
    return fit


def language_of(values: dict, make: Callable, batch: int, micro: int, device: torch.device, small: bool) -> tuple:
    """Model and objective. Words are drawn by Zipf's law, for in the adaptive softmax a rare one costs more."""
    config = LMConfig(**values["model"])
    vocabulary, cutoffs = values["data"]["expect"]["vocabulary"], values["data"]["cutoffs"]
    if small:
        config = replace(config, layers=2, dim=16, heads=2, inner=16, length=16)
        vocabulary, cutoffs = 100, [20, 50]
    frequency = 1 / np.arange(1, vocabulary + 1)
    size = batch * (SLICES * config.length + 1)
    tokens = np.random.default_rng(1).choice(vocabulary, size, p=frequency / frequency.sum()).astype(np.uint32)
    model = WordLM(config, vocabulary, cutoffs, make, seed=1).to(device)
    corpus = SimpleNamespace(splits={"train": tokens}, unit="word")
    return model, LanguageObjective(corpus, model, global_batch_size=batch, micro_batch_size=micro, device=device)


def images_of(values: dict, make: Callable, batch: int, micro: int, device: torch.device, small: bool) -> tuple:
    """Model and objective."""
    config, expect = ViTConfig(**values["model"]), values["data"]["expect"]
    if small:
        config, expect = replace(config, image_size=32, dim=48, depth=2), {"train": 100, "classes": 10}
    model = build_vit(config, expect["classes"], make, seed=1).to(device)
    augment = AugmentConfig(**values["augment"] | {"mix_batch": batch})
    order = ImageOrder(
        expect["train"],
        batch,
        seed=1,
        repeats=augment.repeats,
        mix_batch=batch,
        mixing=augment.mixing,
        micro_batch=micro,
    )
    objective = RandomImages(
        SimpleNamespace(name="noise", splits={"train": range(expect["train"]), "valid": range(1)}),
        model,
        order=order,
        augment=augment,
        data=ImageData(**values["data"] | {"workers": 0}),
        size=config.image_size,
        device=device,
        seed=1,
        images_per_forward=1,
        max_images=None,
        processes=Processes(),
    )
    return model, objective


class RandomImages(ClassificationObjective):
    """Images that are noise and lie in memory: transfer, mixing and stochastic depth as in a training, no loading."""

    def __init__(self, *parts, size: int, **settings):
        super().__init__(*parts, size=size, **settings)
        self.size = size

    def _restarted(self, step: int) -> Generator[ImageBatch, None, None]:
        self._stream = self._endless(step)
        return self._stream

    def _endless(self, step: int) -> Generator[ImageBatch, None, None]:
        largest = max(len(part.rows) for part in self.order.parts(step))
        images = torch.randn(largest, 3, self.size, self.size)
        labels = torch.randint(self.classes, (largest,))
        if self.device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        for number in itertools.count(step):
            for part in self.order.parts(number):
                rows = torch.from_numpy(part.rows)
                yield ImageBatch(number, images[: len(rows)], labels[: len(rows)], rows, part.pieces, ())
