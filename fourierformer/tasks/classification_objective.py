"""Image classification as in DeiT: mixed images and soft targets in training, top-1 and top-5 accuracy afterwards.

All random numbers of a step depend on (seed, step) and on their row or mix group alone: so the loss of a step is the
same for any number of processes and any micro-batch size.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from timm.data.mixup import Mixup, mixup_target
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from fourierformer.data.images.batches import ImageBatch, evaluation_batches, training_batches
from fourierformer.data.images.corpus import ImageCorpus, eval_transform, train_transform, worker_count
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.sets import listed
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import SetupError
from fourierformer.models.vit import ViT, draw_stochastic_depth
from fourierformer.processes import Processes
from fourierformer.seeds import seed_of
from fourierformer.training.objective import Objective, OnProgress, Poll, evaluating
from fourierformer.transfer import to_device

# (images, labels, numbers of the images in their split) -> images that are measured in their place
Perturb = Callable[[Tensor, Tensor, Tensor], Tensor]
UNREADABLE = 0.001  # share of a split that may be unreadable: 1,281 images of ImageNet; its known damage is far less


@dataclass(frozen=True)
class TrainingBatch:
    images: Tensor  # (B, 3, size, size), mixed, on the device
    targets: Tensor  # (B, classes), soft, on the device
    paths: Tensor | None  # (2 * depth, B) uniform numbers for stochastic depth, on the host
    share: float  # of this process's part of the step
    rows: Tensor  # (B,), of the global batch, on the host


class ClassificationObjective(Objective):
    protocols = ()  # only one: the centre crop of every image
    metric = "top1"
    primary = "valid_top1"
    higher_is_better = True
    unit = "images"

    def __init__(
        self,
        corpus: ImageCorpus,
        model: ViT,
        *,
        order: ImageOrder,
        augment: AugmentConfig,
        data: ImageData,
        size: int,
        device: torch.device,
        seed: int,
        images_per_forward: int,
        max_images: int | None,
        processes: Processes,
    ):
        self.corpus, self.order, self.augment = corpus, order, augment
        self.device, self.seed, self.processes = device, seed, processes
        self.images_per_forward = images_per_forward  # in an evaluation: bounds its memory
        self.max_images = max_images  # evaluations use so many, drawn at random but always the same
        self.classes = model.num_classes
        self.branches = 2 * model.config.depth if model.config.drop_path else 0  # that stochastic depth may drop
        self.mean, self.std = data.mean, data.std
        self.transforms = {"train": train_transform(data, augment, size), "valid": eval_transform(data, augment, size)}
        self.workers = worker_count(data, processes.local_world)
        self.mixup = _mixup(augment, self.classes) if augment.mixing else None
        self.criterion = SoftTargetCrossEntropy()
        parts = order.micro_batches(0)
        self.micro_steps, self.own_rows = len(parts), sum(len(part.rows) for part in parts)
        self.samples_per_step, self.steps_per_epoch = order.global_batch, order.steps_per_epoch
        self.validation_images = self._planned("valid")  # after an evaluation: the number of those that could be read
        self.unreadable: dict[str, set[int]] = {split: set() for split in corpus.splits}  # known to this process
        self._stream: Generator[ImageBatch, None, None] | None = None
        self._next_step: int | None = None  # the step that the stream is about to begin; None in the middle of one

    # -- training ---------------------------------------------------------------------------------------------------

    def micro_batches(self, step: int) -> Iterator[TrainingBatch]:
        """This process's batches of a step. All come from one stream, as long as the steps come in their order."""
        stream = self._stream
        if stream is None or self._next_step != step:
            stream = self._restarted(step)
        for number in range(1, self.micro_steps + 1):
            batch = next(stream)
            self._next_step = step + 1 if number == self.micro_steps else None
            self._keep_unreadable("train", batch)
            yield self._prepared(batch)

    def loss(self, model: nn.Module, batch: TrainingBatch) -> Tensor:
        draw_stochastic_depth(model, batch.paths)
        return self.criterion(model(batch.images).float(), batch.targets) * batch.share

    def rows(self, batch: TrainingBatch) -> tuple[Tensor, float]:
        return batch.rows, batch.share

    def row_losses(self, model: nn.Module, batch: TrainingBatch) -> Tensor:
        draw_stochastic_depth(model, batch.paths)
        logits = model(batch.images).float()
        return (-batch.targets * logits.log_softmax(-1)).sum(-1)  # SoftTargetCrossEntropy is their mean

    def _restarted(self, step: int) -> Generator[ImageBatch, None, None]:
        self.close()
        stream = training_batches(
            self.corpus.splits["train"],
            self.order,
            self.transforms["train"],
            start=step,
            workers=self.workers,
            pin=self.device.type == "cuda",
        )
        self._stream = stream
        return stream

    def _prepared(self, batch: ImageBatch) -> TrainingBatch:
        images, labels = to_device(self.device, batch.images, batch.labels)
        if batch.pieces:
            targets = torch.cat([self._mix(batch.step, images, labels, *piece) for piece in batch.pieces])
        else:
            targets = mixup_target(labels, self.classes, smoothing=self.augment.smoothing)
        return TrainingBatch(images, targets, self._paths(batch), len(batch.rows) / self.own_rows, batch.rows)

    def _mix(self, step: int, images: Tensor, labels: Tensor, group: int, start: int, stop: int) -> Tensor:
        """Mixes these rows in place and returns their targets. All pieces of a group draw the same coefficient and
        box, in whichever process they are."""
        assert self.mixup is not None  # without mixing, the order makes no pieces
        np.random.seed(seed_of(self.seed, step, "mix", group) % 2**32)  # timm's Mixup draws from numpy
        _, targets = self.mixup(images[start:stop], labels[start:stop])
        return targets

    def _paths(self, batch: ImageBatch) -> Tensor | None:
        if not self.branches:
            return None
        generator = torch.Generator().manual_seed(seed_of(self.seed, batch.step, "paths"))
        return torch.rand((self.branches, self.samples_per_step), generator=generator)[:, batch.rows]

    def close(self) -> None:
        """Ends the loader processes."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    # -- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, model: nn.Module, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        result = self.measure(model, "valid", "", poll, on_progress)
        return {"valid_loss": result["nll"], "valid_top1": result["top1"], "valid_top5": result["top5"]}

    @torch.inference_mode()
    def measure(
        self, model: nn.Module, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """Cross-entropy and accuracies in per cent of a split, centre crops, each image once over all processes."""
        return self._measure(model, split, self.images_per_forward, None, poll, on_progress)

    @torch.no_grad()  # an attack takes gradients of images, which inference_mode would not give
    def measure_attacked(
        self, model: nn.Module, split: str, attack: Perturb, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """The same of images that `attack` has changed, in batches of at most as many images as in training."""
        together = max(len(part.rows) for part in self.order.micro_batches(0))
        return self._measure(model, split, min(together, self.images_per_forward), attack, poll, on_progress)

    def _measure(
        self,
        model: nn.Module,
        split: str,
        images_per_forward: int,
        attack: Perturb | None,
        poll: Poll,
        on_progress: OnProgress,
    ) -> dict[str, float | int]:
        planned, world = self._planned(split), self.processes.world
        # stays on the device, one host sync at the end: [sum of losses, correct in one guess, in five, images]
        totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        with evaluating(model):
            for number, batch in enumerate(self._evaluation_batches(split, images_per_forward), start=1):
                poll()  # equally often on every process: one that has no images left gets None
                if batch is not None:
                    self.unreadable[split].update(batch.unreadable)
                if batch is not None and len(batch.rows):
                    images, labels = to_device(self.device, batch.images, batch.labels)
                    if attack:
                        images = attack(images, labels, batch.rows)
                    totals += _scores(model(images).float(), labels)
                on_progress(f"{split} images", min(number * images_per_forward * world, planned), planned)
        nll, top1, top5, images = self.processes.sum(totals).tolist()
        self._check_readable(split, planned - int(images), planned)
        if split == "valid":
            self.validation_images = int(images)
        return {"nll": nll / images, "top1": 100 * top1 / images, "top5": 100 * top5 / images, "images": int(images)}

    def from_training(self, records: dict) -> dict[str, dict]:
        """All results: every evaluation during training is of the images that a final one would have."""
        count = {"images": self.validation_images}
        return {"valid": {name: _renamed(record) | count for name, record in records.items()}}

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """Batches of centre crops, without the images that cannot be read; see Objective."""
        images, transform = self.corpus.splits[split], self.transforms["valid"]
        batches = evaluation_batches(
            images, transform, batch=together, workers=self.workers, rank=0, world=1, limit=most
        )
        read = (batch.images for batch in batches if batch is not None and len(batch.rows))
        return min(most, len(images)), (to_device(self.device, crops)[0] for crops in read)

    def _evaluation_batches(self, split: str, together: int) -> Iterator[ImageBatch | None]:
        return evaluation_batches(
            self.corpus.splits[split],
            self.transforms["valid"],
            batch=together,
            workers=self.workers,
            rank=self.processes.rank,
            world=self.processes.world,
            limit=self.max_images,
        )

    def _planned(self, split: str) -> int:
        images = len(self.corpus.splits[split])
        return min(self.max_images or images, images)

    # -- unreadable images ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        unreadable = {split: sorted(rows) for split, rows in self.unreadable.items()}
        return {"validation_images": self.validation_images, "unreadable": unreadable}

    def load_state_dict(self, state: dict) -> None:
        self.validation_images = state["validation_images"]
        for split, rows in state["unreadable"].items():
            self.unreadable[split].update(rows)

    def notes(self) -> list[str]:
        least = "at least " if self.processes.world > 1 else ""
        return [
            f"{least}{len(rows)} of {len(self.corpus.splits[split]):,} {split} images could not be read: "
            + self._names(split)
            for split, rows in self.unreadable.items()
            if rows
        ]

    def _keep_unreadable(self, split: str, batch: ImageBatch) -> None:
        if batch.unreadable:
            self.unreadable[split].update(batch.unreadable)
            self._check_readable(split, len(self.unreadable[split]), len(self.corpus.splits[split]))

    def _check_readable(self, split: str, unreadable: int, images: int) -> None:
        if unreadable > UNREADABLE * images:
            raise SetupError(
                f"data '{self.corpus.name}': {unreadable} of {images:,} {split} images cannot be read, more than "
                f"{UNREADABLE:.1%}: {self._names(split)}. Copy the data again, or remove them."
            )

    def _names(self, split: str) -> str:
        rows = sorted(self.unreadable[split])
        return listed(map(self.corpus.splits[split].name_of, rows)) or "read by another process"


def _renamed(record: dict) -> dict:
    """The numbers of an evaluation during training under the names that results have."""
    return {"nll" if key == "valid_loss" else key.removeprefix("valid_"): value for key, value in record.items()}


def _mixup(augment: AugmentConfig, classes: int) -> Mixup:
    return Mixup(
        mixup_alpha=augment.mixup,
        cutmix_alpha=augment.cutmix,
        prob=augment.mix_probability,
        switch_prob=augment.mix_switch,
        mode="batch",
        label_smoothing=augment.smoothing,
        num_classes=classes,
    )


def _scores(logits: Tensor, labels: Tensor) -> Tensor:
    """[sum of losses, correct in one guess, correct in five, images], float64."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    count = torch.full((), len(labels), dtype=torch.float64, device=logits.device)
    return torch.stack([losses.sum(dtype=torch.float64), hits[:, 0].sum(), hits.sum(), count])
