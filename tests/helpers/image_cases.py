"""Configs of images as the yaml files have them, and a small data set in every form it can be read in."""

import io
import tarfile
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from fourierformer.data.images.spec import AugmentConfig, ImageData
from tests.helpers.command_line import CONFIGS

CLASSES = ["n01440764", "n02123045", "n04285008"]
COUNTS = {"train": 4, "val": 2}  # per class
FORMS = ["folder", "tar", "tar_of_tars", "shards", "json_shards", "parquet"]


def image_data(config: str, **changes) -> ImageData:
    return ImageData(**yaml.safe_load((CONFIGS / "data" / f"{config}.yaml").read_text()) | changes)


def augmentation(config: str, **changes) -> AugmentConfig:
    return AugmentConfig(**yaml.safe_load((CONFIGS / "augment" / f"{config}.yaml").read_text()) | changes)


def files() -> dict[str, dict[str, bytes]]:
    """split -> {class/name: PNG}, every image of another colour and size."""
    made: dict[str, dict[str, bytes]] = {}
    for split, count in COUNTS.items():
        made[split] = {}
        for label, name in enumerate(CLASSES):
            for number in range(count):
                generator = np.random.default_rng([len(split), label, number])
                pixels = generator.integers(0, 256, (20 + number, 24 + label, 3), dtype=np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                made[split][f"{name}/{name}_{number}.png"] = buffer.getvalue()
    return made


def write(root: Path, form: str, made: dict[str, dict[str, bytes]]) -> Path:
    root.mkdir()
    for split, images in made.items():
        {
            "folder": _folder,
            "tar": _tar,
            "tar_of_tars": _tar_of_tars,
            "shards": _shards,
            "json_shards": _shards,
            "parquet": _parquet,
        }[form](root, split, images, form)
    return root


def _folder(root: Path, split: str, images: dict[str, bytes], form: str) -> None:
    for name, content in images.items():
        path = root / split / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _tar(root: Path, split: str, images: dict[str, bytes], form: str) -> None:
    backwards = {f"{split}/{name}": images[name] for name in sorted(images, reverse=True)}
    (root / f"{split}.tar").write_bytes(tar_of(backwards))


def _tar_of_tars(root: Path, split: str, images: dict[str, bytes], form: str) -> None:
    inner = {
        f"{name}.tar": tar_of({path.split("/")[1]: data for path, data in images.items() if path.startswith(name)})
        for name in reversed(CLASSES)
    }
    (root / f"ILSVRC2012_img_{split}.tar").write_bytes(tar_of(inner))


def _shards(root: Path, split: str, images: dict[str, bytes], form: str) -> None:
    for shard in range(2):
        members = {}
        for number, (name, content) in list(enumerate(images.items()))[shard::2]:
            label = str(CLASSES.index(name.split("/")[0]))
            members[f"{number:05}.png"] = content
            if form == "shards":
                members[f"{number:05}.cls"] = label.encode()
            else:
                members[f"{number:05}.json"] = f'{{"label": {label}, "width": 24}}'.encode()
        (root / f"small-{split}-{shard:04}.tar").write_bytes(tar_of(members))


def _parquet(root: Path, split: str, images: dict[str, bytes], form: str) -> None:
    import datasets

    rows = {
        "img": [{"bytes": content, "path": name} for name, content in images.items()],
        "label": [CLASSES.index(name.split("/")[0]) for name in images],
    }
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    name = "validation" if split == "val" else split
    datasets.Dataset.from_dict(rows, features=features).to_parquet(root / f"{name}-00000-of-00001.parquet")


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
