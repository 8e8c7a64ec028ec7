"""The task of image classification: its facts, and the parts of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fourierformer.checking import has_type, type_text
from fourierformer.config import RunSpec
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import SetupError, check_range
from fourierformer.models.config import ViTConfig
from fourierformer.tasks import register
from fourierformer.tasks.base import Metric, Task

if TYPE_CHECKING:
    from fourierformer.data.images.corpus import ImageCorpus
    from fourierformer.data.images.order import ImageOrder

CHOSEN = "chosen on the validation set itself"


@dataclass(frozen=True, kw_only=True)
class VisionEvaluation:
    """How weights are measured, during training and afterwards, always on the validation split."""

    images_per_forward: int
    max_images: int | None

    def __post_init__(self):
        check_range("evaluation.images_per_forward", self.images_per_forward, 1)
        check_range("evaluation.max_images", self.max_images, 1)


@dataclass(frozen=True, kw_only=True)
class VisionSpec(RunSpec):
    model: ViTConfig
    data: ImageData
    augment: AugmentConfig
    evaluation: VisionEvaluation


class Classification(Task[VisionSpec]):
    """A protocol names the weights that were measured: at the best evaluation or the last, raw or averaged."""

    name = "vision"
    script, debug = "train_vit.py", "smoke_vit"
    embedded: ClassVar = {"builtin_images": "built-in digits: not comparable with CIFAR-10 or ImageNet numbers"}
    spec = VisionSpec
    unit, short_unit = "images", "img"
    metrics = (
        Metric("top1", "top-1", "top-1", 2, unit="%", higher_is_better=True, skipped=0.25),
        Metric("top5", "top-5", "top-5", 2, unit="%", higher_is_better=True, skipped=0.25),
    )
    secondary_metrics = ("top5",)
    protocols = ("best", "last", "ema_best", "ema_last")
    preferred_protocols = protocols
    protocol_notes: ClassVar = {
        "best": f"the highest valid top-1 of any evaluation, {CHOSEN}",
        "last": "the end of training",
        "ema_best": f"averaged weights at their highest valid top-1, {CHOSEN}",
        "ema_last": "averaged weights at the end of training",
    }
    default_columns = (("valid", "best"),)
    protocol_column = "weights"
    scored = ("images",)
    waits_for_data = True
    limit_key = "max_images"
    pipeline = "image-classification"

    def primary(self, spec: VisionSpec) -> str:
        return "top1"

    def geometry(self, spec: VisionSpec):
        return spec.model.geometry()

    def check_available(self, spec: VisionSpec) -> None:
        from fourierformer.data.images.corpus import check_available

        check_available(spec.data)

    def load_data(self, spec: VisionSpec, say) -> ImageCorpus:
        from fourierformer.data.images.corpus import load_images

        return load_images(spec.data, say)

    def fingerprint(self, spec: VisionSpec, corpus: ImageCorpus | None) -> str | None:
        # Without a corpus unknown: listing the 1.28 million files of ImageNet takes 13 seconds.
        return corpus.fingerprint if corpus else None

    def build_model(self, spec: VisionSpec, attention, corpus: ImageCorpus | None):
        from fourierformer.models.vit import build_vit

        classes = len(corpus.classes) if corpus else (spec.data.expect or {}).get("classes", 1000)
        return build_vit(spec.model, classes, attention, seed=spec.seed)

    def data_facts(self, corpus: ImageCorpus) -> dict:
        return {"classes": corpus.classes}

    def corpus_of(self, spec: VisionSpec, facts: dict) -> ImageCorpus:
        from fourierformer.data.images.corpus import ImageCorpus

        classes = facts.get("classes")
        if not (has_type(classes, list[str]) and classes):
            raise SetupError(f"data.json: classes={str(classes)[:60]!r}: expected {type_text(list[str])}")
        return ImageCorpus(name=spec.data.name, classes=classes, splits={}, notes=[])

    def export_config(self, spec: VisionSpec, model, corpus: ImageCorpus) -> dict:
        """For timm.create_model("local-dir:..."): integrations/timm.py."""
        shape, attention = spec.model, spec.attention
        arguments = {
            "attention": attention.name,
            "attention_knobs": attention.knobs,
            "seed": spec.seed,
            "img_size": shape.image_size,
            "patch_size": shape.patch,
            "embed_dim": shape.dim,
            "depth": shape.depth,
            "num_heads": shape.heads,
            "mlp_ratio": shape.mlp_ratio,
            "drop_path_rate": shape.drop_path,
            "class_token": shape.pool == "class_token",
            "pos_embed": "learn" if shape.position == "learned" else "none",
            "qk_norm": shape.qk_norm,
            "gate": shape.gate,
            "value_residual": shape.value_residual,
        }
        images = {
            "input_size": [3, shape.image_size, shape.image_size],
            "fixed_input_size": True,
            "interpolation": spec.augment.interpolation,
            "crop_pct": spec.augment.eval_crop,
            "mean": list(spec.data.mean),
            "std": list(spec.data.std),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        }
        return {
            "architecture": "fourierformer_tiny_patch16_224",
            "num_classes": len(corpus.classes),
            "label_names": corpus.classes,
            "model_args": arguments,
            "pretrained_cfg": images,
        }

    def trained(self, spec: VisionSpec, model, corpus: ImageCorpus, step: int):
        from fourierformer.tasks.trained import TrainedClassifier

        return TrainedClassifier(model, spec, corpus, step)

    def objective(self, spec: VisionSpec, corpus: ImageCorpus, model, device, processes):
        from fourierformer.tasks.classification_objective import ClassificationObjective

        return ClassificationObjective(
            corpus,
            model,
            order=_order(spec, len(corpus.splits["train"]), processes.rank, processes.world),
            augment=spec.augment,
            data=spec.data,
            size=spec.model.image_size,
            device=device,
            seed=spec.seed,
            images_per_forward=spec.evaluation.images_per_forward,
            max_images=spec.evaluation.max_images,
            processes=processes,
        )

    def steps_per_epoch(self, spec: VisionSpec, corpus: ImageCorpus | None) -> int | None:
        images = len(corpus.splits["train"]) if corpus else (spec.data.expect or {}).get("train")
        return _order(spec, images).steps_per_epoch if images else None

    def samples_per_step(self, spec: VisionSpec) -> int:
        return spec.global_batch_size

    def activation_bytes(self, spec: VisionSpec, micro_batch: int) -> int:
        """In float32: per token and block about 10 activations of width dim and 3 of the MLP's width."""
        model = spec.model
        tokens = micro_batch * self.geometry(spec).length
        return round(4 * tokens * model.depth * model.dim * (10 + 3 * model.mlp_ratio))

    def data_line(self, corpus: ImageCorpus) -> str:
        counts = ", ".join(f"{len(images):,} {split}" for split, images in corpus.splits.items())
        return f"{corpus.name}: found, {counts} images, {len(corpus.classes):,} classes"

    def scored_text(self, numbers: dict) -> str:
        return f"{numbers['images']} images scored"


def _order(spec: VisionSpec, images: int, rank: int = 0, world: int = 1) -> ImageOrder:
    from fourierformer.data.images.order import ImageOrder

    return ImageOrder(
        images,
        spec.global_batch_size,
        seed=spec.seed,
        repeats=spec.augment.repeats,
        mix_batch=spec.augment.mix_batch,
        mixing=spec.augment.mixing,
        micro_batch=spec.trainer.micro_batch_size,
        rank=rank,
        world=world,
    )


register(Classification())
