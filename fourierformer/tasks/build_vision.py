"""What an image classification run is made of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fourierformer.attention import Attention, Geometry
from fourierformer.data.images.corpus import ImageCorpus, load_images
from fourierformer.data.images.corpus import check_available as check_images
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import check_range
from fourierformer.models.vit import ViT, ViTConfig, build_vit
from fourierformer.tasks.classification import ClassificationTask
from fourierformer.training.processes import Processes

SCRIPT = "train_vit.py"
OTHER = "python train_lm.py trains language models"
FOREIGN_KEYS = {"model": "inner", "data": "unit"}  # only a language group has these
LIMIT = "max_images"
UNIT = "images"


@dataclass(frozen=True, kw_only=True)
class VisionEvaluation:
    """How weights are measured, during training and afterwards: always on the whole validation split."""

    images_per_forward: int
    max_images: int | None

    def __post_init__(self):
        check_range("evaluation.images_per_forward", self.images_per_forward, 1)
        check_range("evaluation.max_images", self.max_images, 1)


SECTIONS = {"augment": AugmentConfig, "data": ImageData, "evaluation": VisionEvaluation, "model": ViTConfig}


def primary(values: dict) -> str:
    return "top1"


def geometry(values: dict) -> Geometry:
    return ViTConfig(**values["model"]).geometry()


def check_available(values: dict) -> None:
    check_images(ImageData(**values["data"]))


def load_data(values: dict, say) -> ImageCorpus:
    return load_images(ImageData(**values["data"]), progress=say)


def image_order(values: dict, images: int, processes: Processes) -> ImageOrder:
    augment = AugmentConfig(**values["augment"])
    return ImageOrder(
        images,
        values["global_batch_size"],
        seed=values["seed"],
        repeats=augment.repeats,
        mix_batch=augment.mix_batch,
        mixing=augment.mixing,
        micro_batch=values["trainer"]["micro_batch_size"],
        rank=processes.rank,
        world=processes.world,
    )


def steps_per_epoch(values: dict, corpus: ImageCorpus | None) -> int | None:
    """Without a corpus (in a plan), of the published number of images, where there is one."""
    images = len(corpus.splits["train"]) if corpus else (values["data"]["expect"] or {}).get("train")
    return image_order(values, images, Processes()).steps_per_epoch if images else None


def build_model(values: dict, attention: Callable[[Geometry], Attention], corpus: ImageCorpus | None) -> ViT:
    """Without a corpus (in a plan), for the published number of classes."""
    classes = len(corpus.classes) if corpus else (values["data"]["expect"] or {}).get("classes", 1000)
    return build_vit(ViTConfig(**values["model"]), classes, attention, seed=values["seed"])


def build_task(
    values: dict, corpus: ImageCorpus, model: ViT, device: torch.device, processes: Processes
) -> ClassificationTask:
    return ClassificationTask(
        corpus,
        model,
        order=image_order(values, len(corpus.splits["train"]), processes),
        augment=AugmentConfig(**values["augment"]),
        data=ImageData(**values["data"]),
        size=values["model"]["image_size"],
        device=device,
        seed=values["seed"],
        images_per_forward=values["evaluation"]["images_per_forward"],
        max_images=values["evaluation"]["max_images"],
        processes=processes,
    )


def plan_lines(values: dict, corpus: ImageCorpus | None) -> dict[str, str]:
    """What dry_run=true says about the data."""
    if corpus is None:
        return {}
    counts = ", ".join(f"{len(images):,} {split}" for split, images in corpus.splits.items())
    return {"data": f"{corpus.name}: found, {counts} images, {len(corpus.classes):,} classes"}


def samples_per_step(values: dict) -> int:
    return values["global_batch_size"]


def activation_bytes(values: dict, micro: int) -> int:
    """float32; per token and block about 10 activations of width dim and 3 of the MLP's width."""
    model = ViTConfig(**values["model"])
    tokens = micro * geometry(values).length
    return round(4 * tokens * model.depth * model.dim * (10 + 3 * model.mlp_ratio))
