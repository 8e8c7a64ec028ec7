"""The paper's ImageNet recipe, value by value: the arguments of the authors' vision code (their defaults, on 4 GPUs
with 256 images each)."""

import pytest

from fourierformer.config import RunSpec, flatten
from fourierformer.runs.spec import attention_of, task_of
from tests.helpers.command_line import spec_of

GPUS, PER_GPU = 4, 256


def recipe(*overrides: str) -> RunSpec:
    return spec_of("experiment=imagenet_deit_tiny", *overrides, script="train_vit")


VALUES = {
    "global_batch_size": GPUS * PER_GPU,
    "trainer.epochs": 300,
    "trainer.steps": None,
    "trainer.eval_every": None,  # every epoch
    "trainer.clip": None,
    "trainer.ema_decay": 0.99996,
    "optim.name": "adamw",
    "optim.lr": 5e-4 * PER_GPU * GPUS / 512,  # linear in the global batch
    "optim.betas": [0.9, 0.999],
    "optim.eps": 1e-8,
    "optim.weight_decay": 0.05,
    "schedule.name": "cosine",
    "schedule.warmup_epochs": 5,
    "schedule.warmup_start": 1e-6,
    "schedule.min_lr": 1e-5,
    "schedule.per_epoch": True,
    "model.image_size": 224,
    "model.patch": 16,
    "model.dim": 192,
    "model.depth": 12,
    "model.heads": 3,
    "model.mlp_ratio": 4,
    "model.drop_path": 0.1,
    "augment.crop": "resized",
    "augment.crop_scale": [0.08, 1.0],
    "augment.flip": 0.5,
    "augment.interpolation": "bicubic",
    "augment.color_jitter": 0.4,
    "augment.randaugment": "rand-m9-mstd0.5-inc1",
    "augment.erase": 0.25,
    "augment.mixup": 0.8,
    "augment.cutmix": 1.0,
    "augment.mix_probability": 1.0,
    "augment.mix_switch": 0.5,
    "augment.mix_batch": PER_GPU,
    "augment.smoothing": 0.1,
    "augment.repeats": 3,
    "augment.eval_crop": 224 / 256,
    "data.mean": [0.485, 0.456, 0.406],
    "data.std": [0.229, 0.224, 0.225],
    "data.expect": {"train": 1_281_167, "valid": 50_000, "classes": 1000},
    "evaluation.images_per_forward": 384,
    "evaluation.max_images": None,
}


@pytest.mark.parametrize(("key", "value"), VALUES.items(), ids=VALUES.keys())
def test_value(key, value):
    spec = recipe()
    actual = {**dict(flatten(spec.values)), "data.expect": spec.data.expect}[key]
    assert actual == pytest.approx(value) if isinstance(value, float) else actual == value


@pytest.mark.parametrize(
    ("attention", "parameters"),
    [("softmax", 5_717_416), ("fourier", 5_717_428), ("fourier_vector", 5_718_184)],
)
def test_published_parameter_counts(attention, parameters):
    """Softmax as in the training logs of this recipe; one radius per block is 12 more, one per coordinate 12 * 64."""
    spec = recipe(f"attention={attention}")
    model = task_of(spec).build_model(spec, attention_of(spec), None)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_fourier_attention_starts_as_in_the_vision_code():
    """paramR = 1.0, one per block, power 4, eps 1e-6; the language model's starts at 2.0."""
    spec = recipe("attention=fourier")
    layer = attention_of(spec)(spec.model.geometry())
    assert (layer.radius.tolist(), layer.radius.dim(), layer.power, layer.eps) == (1.0, 0, 4, 1e-6)


def test_the_papers_text_has_four_heads():
    assert recipe("model.heads=4").model.geometry().head_dim == 48


def test_an_epoch_has_deits_steps():
    """DeiT's sampler selects floor(1,281,167 // 256 * 256 / 4) = 320,256 images per GPU: 1,251 batches of 256."""
    from fourierformer.data.images.order import ImageOrder

    order = ImageOrder(1_281_167, 1024, seed=0, repeats=3, mix_batch=256, mixing=True, micro_batch=None)
    assert order.steps_per_epoch == 1_281_167 // 256 * 256 // GPUS // PER_GPU == 1251
