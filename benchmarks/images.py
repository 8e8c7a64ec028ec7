"""Our training loader against timm's, in one run: python -m benchmarks.images --folder imagenet/train --workers 8

Both read a folder of class folders with DeiT's augmentation: the same transform, as many processes, the same batch
size, tensors in memory shared with the loader processes. They take turns, so that a busy moment hits both. Each turn
has the start of its processes and the first batch behind it when its clock begins, and waits for the images that were
under way before the other begins.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fourierformer.provenance import CONFIGS


def our_batches(folder: Path, transform: Callable, batch: int, workers: int) -> Iterator:
    from fourierformer.data.images.corpus import training_batches
    from fourierformer.data.images.folder import FolderSet
    from fourierformer.data.images.order import ImageOrder

    images = FolderSet(folder)
    order = ImageOrder(
        len(images), batch, seed=0, repeats=1, mix_batch=None, mixing=False, micro_batch=None, rank=0, world=1
    )
    return training_batches(images, order, transform, start=0, workers=workers, pin=False)


def timm_batches(folder: Path, transform: Callable, batch: int, workers: int) -> Iterator:
    """Epoch after epoch; timm's transform is replaced by the one we use, which it would otherwise make itself."""
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(folder), split="train", is_training=True)
    loader = create_loader(
        dataset, input_size=224, batch_size=batch, is_training=True, use_prefetcher=False, num_workers=workers
    )
    dataset.transform = transform
    for _ in itertools.count():
        yield from loader


def images_per_second(batches: Iterator, batch: int, count: int) -> float:
    """Over `count` batches, after a first one that starts the processes."""
    next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * batch / (time.perf_counter() - started)


def compare(makers: dict[str, Callable[[], Iterator]], batch: int, count: int, turns: int) -> dict[str, list[float]]:
    """Rates of each maker."""
    from benchmarks.measure import take_turns

    def rate(name: str) -> float:
        images = images_per_second(makers[name](), batch, count)  # the processes end with their iterator
        print(f"  {name}: {images:.1f} images/s", flush=True)
        return images

    rates = take_turns([partial(rate, name) for name in makers], turns)
    return dict(zip(makers, rates, strict=True))


def summary(rates: dict[str, list[float]]) -> str:
    """Medians, and the median of the ratios of neighbouring turns: those shared the machine's mood."""
    ours, timms = (statistics.median(rates[name]) for name in ("ours", "timm"))
    ratios = sorted(a / b for a, b in zip(rates["ours"], rates["timm"], strict=True))
    return (
        f"ours {ours:.1f} images/s, timm {timms:.1f} images/s, "
        f"ratio {statistics.median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="class folders with images")
    parser.add_argument("--workers", type=int, default=2, help="loader processes of each")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=6, help="timed batches in a turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--augment", default="deit", choices=sorted(p.stem for p in (CONFIGS / "augment").glob("*")))
    arguments = parser.parse_args()
    import yaml  # this and what reads images: after --help

    from fourierformer.data.images.corpus import AugmentConfig, ImageData, train_transform

    data = ImageData(**yaml.safe_load((CONFIGS / "data" / "imagenet.yaml").read_text()))
    augment = AugmentConfig(**yaml.safe_load((CONFIGS / "augment" / f"{arguments.augment}.yaml").read_text()))
    transform = train_transform(data, augment, arguments.size)
    given = arguments.folder, transform, arguments.batch, arguments.workers
    makers = {"ours": lambda: our_batches(*given), "timm": lambda: timm_batches(*given)}
    print(f"{arguments.repeats} turns of {arguments.batches} batches of {arguments.batch}, {arguments.workers} workers")
    print(summary(compare(makers, arguments.batch, arguments.batches, arguments.repeats)))


if __name__ == "__main__":
    main()
