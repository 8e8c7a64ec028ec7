"""Open the two splits of an image data set: files under data.root, the hub, or the built-in digits.

The first existing form of a split is used (train may be a tar, val a folder):

folder   train/<class>/*.jpeg
tar      *train*.tar with class folders, or with class tars, or with WebDataset's key.jpg + key.cls; or train/*.tar
parquet  train*.parquet with the columns image (or img) and label, also in data/ or in the folder of the hub's config

timm (1.0.31) has no reader of parquet files: its ReaderHfds calls `datasets.load_dataset`, as this module does.
"""

from collections.abc import Iterable
from pathlib import Path

from fourierformer.data import hub
from fourierformer.data.images.arrow import ArrowSet
from fourierformer.data.images.digits import DigitsSet
from fourierformer.data.images.folder import FolderSet
from fourierformer.data.images.sets import ImageSet, listed
from fourierformer.data.images.spec import SPLITS, ImageData
from fourierformer.data.images.tar import open_tars
from fourierformer.data.location import Say
from fourierformer.errors import SetupError, short
from fourierformer.files import require_small

# CIFAR-10 has no third split: its test images are used for validation
NAMES = {"train": ("train",), "valid": ("val", "valid", "validation", "test")}
# split -> its form on this disk, "folder" (of its classes), "tar" or "parquet", and its paths
Local = dict[str, tuple[str, list[Path]]]


def check_source(data: ImageData) -> None:
    """SetupError, with ways out, unless both splits are available. Looks at names only."""
    if data.source == "builtin":
        return
    local = _local_splits(data)
    if len(local) < len(SPLITS):
        reason = hub.why_unreachable(data)
        if local or reason:
            raise _missing(data, local, reason)


def local_files(data: ImageData) -> dict[str, list[Path]] | None:
    """Every file of each split, or None unless both are on this disk."""
    local = _local_splits(data)
    return {name: _all_files(*split) for name, split in local.items()} if len(local) == len(SPLITS) else None


def _all_files(kind: str, paths: list[Path]) -> list[Path]:
    if kind != "folder":
        return paths
    images = FolderSet(paths[0])
    return [Path(images.name_of(index)) for index in range(len(images))]


def open_splits(data: ImageData, say: Say) -> dict[str, ImageSet]:
    """Open both splits, with one list of classes for both."""
    if data.source == "builtin":
        splits: dict[str, ImageSet] = {split: DigitsSet(split) for split in SPLITS}
    else:
        check_source(data)
        local = _local_splits(data)
        if len(local) == len(SPLITS):
            splits = {name: _open(data, name, *split, say) for name, split in local.items()}
        else:
            splits = _from_hub(data, say)
    for split, images in splits.items():
        if not len(images):
            raise SetupError(f"data '{data.name}': the {split} split holds no images")
    _agree(data, splits["train"], splits["valid"])
    return splits


def _local_splits(data: ImageData) -> Local:
    """The splits that are on this disk."""
    finders = {"folder": _class_folders, "tar": _tars, "parquet": _parquet}
    local: Local = {}
    for split in SPLITS:
        for kind, find in finders.items():
            if split not in local and (paths := find(data, split)):
                local[split] = kind, paths
    return local


def _class_folders(data: ImageData, split: str) -> list[Path]:
    for folder in (data.root_path / name for name in NAMES[split]):
        if folder.is_dir() and any(entry.is_dir() for entry in folder.iterdir()):
            return [folder]
    return []


def _tars(data: ImageData, split: str) -> list[Path]:
    root = data.root_path
    for name in NAMES[split]:
        inside = sorted((root / name).glob("*.tar"))
        beside = [path for path in root.glob(f"*{name}*.tar") if split == "train" or "train" not in path.stem]
        # ILSVRC2012_img_train_t3.tar is a third task's: dogs, which the tar of all classes has as well
        beside = sorted(path for path in beside if not path.stem.endswith("_t3"))
        if inside or beside:
            return inside or beside
    return []


def _parquet(data: ImageData, split: str) -> list[Path]:
    root = data.root_path
    folders = [root, root / "data", *([root / data.hub_config] if data.hub_config else [])]
    found = (sorted(folder.glob(f"{name}*.parquet")) for name in NAMES[split] for folder in folders)
    return next(filter(None, found), [])


def _open(data: ImageData, name: str, kind: str, paths: list[Path], say: Say) -> ImageSet:
    if kind == "folder":
        say(f"listing {paths[0]}")
        return FolderSet(paths[0])
    if kind == "tar":
        return open_tars(data, name, paths, say)
    return ArrowSet(_unpack(data, paths, say), f"{paths[0].parent}/{NAMES[name][0]}*.parquet")


def _unpack(data: ImageData, paths: list[Path], say: Say):
    """Open parquet files. They have no random access, so `datasets` keeps an unpacked copy under data.cache."""
    datasets, files, cache = hub.datasets_library(), [str(path) for path in paths], str(data.cache_path / "arrow")
    say(f"opening {listed([path.name for path in paths], 2)}")
    try:
        for path in paths:
            require_small(path, 2**50)  # a pipe would be waited for
        return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    except Exception as error:  # datasets, Arrow and the disk raise many kinds of errors
        raise SetupError(f"{paths[0]} cannot be opened: {type(error).__name__}: {error}") from error


def _from_hub(data: ImageData, say: Say) -> dict[str, ImageSet]:
    """Both splits from the copy that `datasets` keeps, or from the network."""
    datasets = hub.datasets_library()
    splits: dict[str, ImageSet] = {}
    try:
        for split in SPLITS:
            say(f"opening {data.hub} {data.hub_config or ''}: {split}")
            if cached := next((files for name in NAMES[split] if (files := hub.cached_files(data, name))), []):
                rows = hub.cached_rows(cached)
            else:
                available = datasets.get_dataset_split_names(data.hub, data.hub_config)
                name = next((name for name in NAMES[split] if name in available), NAMES[split][0])
                rows = datasets.load_dataset(data.hub, data.hub_config, split=name)
            splits[split] = ArrowSet(rows, f"{data.hub} {split}")
    except SetupError:
        raise
    except Exception as error:  # datasets and its network layers raise many kinds of errors
        raise _hub_failed(data, error) from error
    return splits


def _hub_failed(data: ImageData, error: Exception) -> SetupError:
    if "gated" in f"{type(error).__name__} {error}".lower():
        return SetupError(
            f"data '{data.name}': {data.hub} is gated. Ask for access at https://huggingface.co/datasets/{data.hub}, "
            f"then `hf auth login` (or huggingface-cli login), and run again; or put the images into {data.root}"
        )
    return SetupError(f"data '{data.name}': fetching {data.hub} failed: {short(error)}")


def _agree(data: ImageData, train: ImageSet, valid: ImageSet) -> None:
    """SetupError unless both splits have the same classes; classes without names get their numbers as names."""
    if not train.classes and not valid.classes:
        count = 1 + int(max(train.labels.max(), valid.labels.max()))
        train.classes = valid.classes = [str(number) for number in range(count)]
    if train.classes != valid.classes:
        own = {"train": set(train.classes), "valid": set(valid.classes)}
        only = {"train": own["train"] - own["valid"], "valid": own["valid"] - own["train"]}
        differences = "; ".join(f"only in {split}: {listed(sorted(names))}" for split, names in only.items() if names)
        counts = f"train has {len(train.classes):,} classes and valid {len(valid.classes):,}"
        problem = f"they must be the same ({differences or 'their order differs'})"
        raise SetupError(f"data '{data.name}': {counts}, and {problem}")


def _missing(data: ImageData, local: Local, hub_reason: str) -> SetupError:
    root = data.root_path
    if not root.exists():
        what = f"there is no {root}" + ("" if root.is_absolute() else f" (in {Path.cwd()})")
    else:
        lacking = {split: "|".join(NAMES[split]) for split in SPLITS if split not in local}
        sought = (f"{n}/<class>/*.jpeg, *{n}*.tar, {n}*.parquet for {split}" for split, n in lacking.items())
        what = f"{root} has none of {'; none of '.join(sought)}{_hint(root, lacking)}"
    reason = f"; {hub_reason}" if hub_reason else ""
    return SetupError(
        f"Data '{data.name}' is missing: {what}{reason}. Fix one:\n"
        f"  (a) put the images into {data.root} as train/<class>/*.jpeg and val/<class>/*.jpeg (or as tar files, "
        "WebDataset shards or parquet), or point there: data.root=/your/folder (a script's --data-root)\n"
        + (f"  (b) run on a machine with internet, which gets {data.hub} from the hub\n" if data.hub else "")
        + f"  ({'c' if data.hub else 'b'}) train without it, on the built-in digits: data=builtin_images"
    )


def _hint(root: Path, lacking: Iterable[str]) -> str:
    """Part of the message about missing images: the content of the root instead."""
    if not root.is_dir():
        return " (it is a file: give the folder that contains it)"
    for split in lacking:
        for name in NAMES[split]:
            if (root / name).is_dir():
                return f" ({root / name} has no folder per class; images outside of such a folder have no label)"
    inside = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
    return f" (it has {listed(inside)})" if inside else " (it is empty)"
