"""The paper's trainings as benchmarks/steps.py begins them: the real loop on random data, no data set."""

import itertools
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch

from benchmarks.recipes import Recipe, compose
from fourierformer import attention
from fourierformer.data.images.batches import ImageBatch
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.models.config import LMConfig, ViTConfig
from fourierformer.models.lm import WordLM
from fourierformer.models.vit import build_vit
from fourierformer.processes import Processes
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.training.average import MovingAverage
from fourierformer.training.config import TrainerConfig
from fourierformer.training.loop import Fit
from fourierformer.training.optim import OptimConfig, build_optimizer
from fourierformer.training.precision import set_matmul_precision

SLICES = 4  # of random tokens, each one step long


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
        largest = max(len(part.rows) for part in self.order.micro_batches(step))
        images = torch.randn(largest, 3, self.size, self.size)
        labels = torch.randint(self.classes, (largest,))
        if self.device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        for number in itertools.count(step):
            for part in self.order.micro_batches(number):
                rows = torch.from_numpy(part.rows)
                yield ImageBatch(number, images[: len(rows)], labels[: len(rows)], rows, part.pieces, ())
