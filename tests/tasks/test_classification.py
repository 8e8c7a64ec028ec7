"""Classification: accuracies against a plain count, mixing against timm's, and one loss however a step is divided."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import Mixup

from fourierformer import attention
from fourierformer.data.images.batches import training_batches
from fourierformer.data.images.corpus import ImageCorpus, eval_transform, train_transform
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.sets import ImageSet
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import SetupError
from fourierformer.models.vit import ViTConfig, build_vit
from fourierformer.processes import Processes
from fourierformer.tasks import classification_objective as classification
from fourierformer.tasks.classification_objective import ClassificationObjective

CPU, SIZE, CLASSES, BATCH = torch.device("cpu"), 8, 7, 16
DATA = ImageData(name="fake", root=".", mean=[0.0] * 3, std=[1.0] * 3, workers=0)
PLAIN = {
    **{"name": "t", "crop": "none", "crop_scale": [0.5, 1.0], "flip": 0.0, "interpolation": "bilinear"},
    **{"color_jitter": 0.0, "randaugment": None, "erase": 0.0, "mixup": 0.0, "cutmix": 0.0, "mix_probability": 1.0},
    **{"mix_switch": 0.5, "mix_batch": None, "smoothing": 0.1, "repeats": 1, "eval_crop": 1.0},
}
BOTH = {"mixup": 0.8, "cutmix": 1.0, "mix_batch": 8}


class FakeSet(ImageSet):
    """Noise whose first pixel holds the image's number; some images are damaged."""

    def __init__(self, count: int, damaged: tuple[int, ...] = ()):
        labels = np.random.default_rng(1).integers(0, CLASSES, count)
        super().__init__(labels, [str(c) for c in range(CLASSES)])
        self.damaged = damaged

    def name_of(self, index: int) -> str:
        return f"image{index}.png"

    def open(self, index: int) -> Image.Image:
        if index in self.damaged:
            raise OSError("truncated")
        pixels = np.random.default_rng(index).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        pixels[0, 0] = (index // 256, index % 256, 0)
        return Image.fromarray(pixels)


class Oracle(torch.nn.Module):
    """A stand-in model: image number -> the logits of a table."""

    def __init__(self, logits: np.ndarray):
        super().__init__()
        self.num_classes, self.config = logits.shape[1], SimpleNamespace(depth=1, drop_path=0.0)
        self.table = torch.from_numpy(logits)

    def forward(self, images):
        high, low = (images[:, :2, 0, 0] * 255).round().long().unbind(1)
        return self.table[256 * high + low]


def small_vit(drop_path=0.5):
    torch.manual_seed(0)
    shape = ViTConfig(name="t", image_size=SIZE, patch=4, dim=16, depth=3, heads=2, mlp_ratio=2.0, drop_path=drop_path)
    model = build_vit(shape, CLASSES, partial(attention.build, "fourier"))
    for p in model.parameters():  # far from the uniform distribution, so that a wrong row or number shows
        torch.nn.init.normal_(p, std=0.4)
    return model.train()


def make_task(model, train=64, valid=50, *, micro=None, processes=None, seed=3, per_forward=16, limit=None, **augment):
    """`train` and `valid` are counts or sets."""
    sets = {"train": train, "valid": valid}
    sets = {split: FakeSet(images) if isinstance(images, int) else images for split, images in sets.items()}
    processes, augment = processes or Processes(), AugmentConfig(**PLAIN | augment)
    order = ImageOrder(
        len(sets["train"]),
        BATCH,
        seed=seed,
        repeats=augment.repeats,
        mix_batch=augment.mix_batch,
        mixing=augment.mixing,
        micro_batch=micro,
        rank=processes.rank,
        world=processes.world,
    )
    return ClassificationObjective(
        ImageCorpus(name="fake", classes=sets["train"].classes, splits=sets, notes=[]),
        model,
        order=order,
        augment=augment,
        data=DATA,
        size=SIZE,
        device=CPU,
        seed=seed,
        images_per_forward=per_forward,
        max_images=limit,
        processes=processes,
    )


def measured(task, model, split="valid"):
    return task.measure(model, split, "", lambda: None, lambda *progress: None)


# -- evaluation -------------------------------------------------------------------------------------------------------


def random_logits(images: int) -> np.ndarray:
    return 3 * np.random.default_rng(5).standard_normal((images, CLASSES)).astype(np.float32)


def counted(logits: np.ndarray, labels: np.ndarray) -> dict:
    """Sorting every row and taking logarithms of sums, in numpy."""
    best = np.argsort(-logits, axis=1)
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    return {
        "nll": pytest.approx(-log_p[np.arange(len(labels)), labels].mean(), abs=1e-6),
        "top1": pytest.approx(100 * np.mean(best[:, 0] == labels)),
        "top5": pytest.approx(100 * np.mean([y in row[:5] for y, row in zip(labels, best, strict=True)])),
        "images": len(labels),
    }


@pytest.mark.parametrize("per_forward", [1, 7, 50, 1000])
def test_accuracies_are_a_plain_count_whatever_goes_through_at_once(per_forward):
    logits = random_logits(50)
    model = Oracle(logits)
    task = make_task(model, per_forward=per_forward)
    expected = counted(logits, FakeSet(50).labels)
    result = measured(task, model)
    assert result == expected
    assert 0 < result["top1"] < result["top5"] < 100
    assert task.evaluate(model, lambda: None, lambda *progress: None) == {
        "valid_loss": result["nll"],
        "valid_top1": result["top1"],
        "valid_top5": result["top5"],
    }


@dataclass(frozen=True)
class Threads(Processes):
    """Processes as threads: sums over all of them."""

    shared: list = None
    gate: threading.Barrier = None

    def sum(self, tensor):
        self.shared.append(tensor)
        self.gate.wait(timeout=60)
        return torch.stack(self.shared).sum(0)


@pytest.mark.parametrize(("world", "per_forward"), [(2, 8), (4, 12), (4, 100)])
def test_processes_share_an_evaluation(world, per_forward):
    logits, shared, gate = random_logits(50), [], threading.Barrier(world)
    polls = [0] * world

    def run(rank: int) -> dict:
        model = Oracle(logits)
        task = make_task(model, per_forward=per_forward, processes=Threads(rank, world, shared=shared, gate=gate))

        def poll():
            polls[rank] += 1

        return task.measure(model, "valid", "", poll, lambda *progress: None)

    with ThreadPoolExecutor(world) as pool:
        results = list(pool.map(run, range(world)))
    assert results == [counted(logits, FakeSet(50).labels)] * world
    assert len(set(polls)) == 1, f"a poll is a meeting of all processes: {polls}"


def test_fewer_than_five_classes_have_a_top5_of_100():
    logits = random_logits(50)[:, :3]
    valid = FakeSet(50)
    valid.labels = valid.labels % 3
    assert measured(make_task(Oracle(logits), valid=valid), Oracle(logits))["top5"] == 100


def test_a_limit_bounds_the_images():
    logits = random_logits(50)
    task = make_task(Oracle(logits), limit=20)
    assert task.validation_images == 20
    assert measured(task, Oracle(logits))["images"] == 20


def test_evaluation_is_without_stochastic_depth_and_augmentation_and_leaves_the_mode_as_it_was():
    model = small_vit()
    task = make_task(model, flip=1.0)
    assert measured(task, model) == measured(task, model)
    assert model.training
    images, labels = [], []
    transform = eval_transform(DATA, task.augment, SIZE)
    for index in range(50):
        image, label = task.corpus.splits["valid"].read(index)
        images.append(transform(image))
        labels.append(label)
    with torch.no_grad():
        logits = model.eval()(torch.stack(images))
    assert measured(task, model) == counted(logits.numpy(), np.array(labels))


def test_analyses_of_attention_see_what_an_evaluation_sees():
    task = make_task(small_vit(), valid=FakeSet(50, damaged=(3,)), flip=1.0, processes=Processes(1, 2))
    count, batches = task.attention_inputs("valid", 1000, 20)
    images = list(batches)
    assert (count, [len(part) for part in images]) == (50, [19, 20, 10])
    transform = eval_transform(DATA, task.augment, SIZE)
    expected = [transform(FakeSet(50).read(index)[0]) for index in range(50) if index != 3]
    assert torch.equal(torch.cat(images), torch.stack(expected))
    count, batches = task.attention_inputs("train", 7, 20)
    assert count == len(torch.cat(list(batches))) == 7


def test_progress_ends_at_its_total():
    seen, model = [], Oracle(random_logits(50))
    make_task(model, per_forward=16).measure(model, "valid", "", lambda: None, lambda *progress: seen.append(progress))
    assert seen == [("valid images", done, 50) for done in (16, 32, 48, 50)]


def test_a_poll_can_stop_an_evaluation():
    model = Oracle(random_logits(50))

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_task(model).measure(model, "valid", "", stop, lambda *progress: None)


# -- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [None, 3])
def test_attacked_images_are_measured_in_the_place_of_the_images(micro):
    """The attack gets the labels and numbers of its images, and a batch of training at most."""
    logits = random_logits(50)
    model, sizes = Oracle(logits), []
    task = make_task(model, micro=micro, per_forward=1000)
    labels_of = FakeSet(50).labels

    def shifted(images, labels, rows):
        """Image i becomes image i + 1."""
        sizes.append(len(images))
        assert labels.tolist() == labels_of[rows].tolist()
        numbers = (rows + 1) % 50
        images = images.clone()
        images[:, 1, 0, 0] = numbers / 255
        return images

    result = task.measure_attacked(model, "valid", shifted, lambda: None, lambda *progress: None)
    assert result == counted(np.roll(logits, -1, axis=0), labels_of)
    assert sum(sizes) == 50
    assert max(sizes) == (micro or BATCH)


def test_an_attack_that_changes_nothing_leaves_the_numbers_and_can_take_gradients():
    model = small_vit()
    task = make_task(model)

    def unmoved(images, labels, rows):
        assert not model.training
        with torch.enable_grad():
            images = images.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(images).sum(), images)
        assert gradient.abs().max() > 0
        return images.detach()

    clean = measured(task, model)
    assert task.measure_attacked(model, "valid", unmoved, lambda: None, lambda *progress: None) == clean
    assert all(parameter.grad is None for parameter in model.parameters())


# -- mixing -----------------------------------------------------------------------------------------------------------


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def unmixed(step: int, task) -> tuple[torch.Tensor, torch.Tensor]:
    """The step's images and labels in the order of the rows, as the loader makes them."""
    order = ImageOrder(64, BATCH, seed=3, repeats=1, mix_batch=None, mixing=False, micro_batch=None)
    transform = train_transform(DATA, task.augment, SIZE)
    batches = training_batches(task.corpus.splits["train"], order, transform, start=step, workers=0, pin=False)
    batch = next(batches)
    assert batch.rows.tolist() == list(range(BATCH))
    return batch.images, batch.labels


@pytest.mark.parametrize("kind", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_images_and_targets_are_timms_on_the_batches_of_deits_processes(kind, world):
    """Mix group g of n is DeiT's process g of n, which holds the rows g, g + n, g + 2n, ..."""
    groups = 4
    images, targets = torch.empty(BATCH, 3, SIZE, SIZE), torch.empty(BATCH, CLASSES)
    for rank in range(world):
        task = make_task(small_vit(), mix_batch=4, micro=4, flip=0.5, processes=Processes(rank, world), **kind)
        for part, batch in zip(task.order.micro_batches(2), task.micro_batches(2), strict=True):
            images[part.rows], targets[part.rows] = batch.images, batch.targets
    peer = Mixup(
        mixup_alpha=kind.get("mixup", 0.0),
        cutmix_alpha=kind.get("cutmix", 0.0),
        label_smoothing=0.1,
        num_classes=CLASSES,
    )
    plain, labels = unmixed(2, task)
    changed = 0
    for group in range(groups):
        np.random.seed(hashed(f"3 2 mix {group}") % 2**32)
        x, y = peer(plain[group::groups].clone(), labels[group::groups])
        torch.testing.assert_close(images[group::groups], x, rtol=0, atol=1e-7)
        torch.testing.assert_close(targets[group::groups], y, rtol=0, atol=1e-7)
        changed += not torch.equal(x, plain[group::groups])
    assert changed >= 3


def test_the_chances_of_mixing_are_those_of_the_config():
    mixup = make_task(small_vit(), **BOTH, mix_probability=0.25, mix_switch=0.75).mixup
    assert (mixup.mix_prob, mixup.switch_prob) == (0.25, 0.75)


def test_without_mixing_targets_are_smooth():
    task = make_task(small_vit())
    (batch,) = task.micro_batches(0)
    images, labels = unmixed(0, task)
    assert torch.equal(batch.images, images)
    expected = torch.full((BATCH, CLASSES), 0.1 / CLASSES)
    expected[torch.arange(BATCH), labels] = 0.9 + 0.1 / CLASSES
    torch.testing.assert_close(batch.targets, expected)


# -- one loss ---------------------------------------------------------------------------------------------------------


def step_of(world: int, micro: int | None, step: int, **augment) -> tuple[float, list[torch.Tensor]]:
    """Mean over processes of the loss, and of its gradients, of one step of `world` processes."""
    model, total = small_vit(), 0.0
    for rank in range(world):
        task = make_task(model, processes=Processes(rank, world), micro=micro, flip=0.5, crop="padded", **augment)
        for batch in task.micro_batches(step):
            loss = task.loss(model, batch) / world
            loss.backward()
            total += loss.item()
    return total, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    "augment",
    [
        *({**BOTH, "repeats": 3}, {"cutmix": 1.0, "mix_batch": 2}),
        *(pytest.param(less, marks=pytest.mark.full("a part of the others")) for less in ({}, BOTH, {"mixup": 0.8})),
    ],
)
def test_processes_and_micro_batches_do_not_change_the_loss(augment):
    """With stochastic depth at 0.5, random flips and shifts, smoothing and mixing."""
    losses = []
    for step in range(2):
        loss, gradients = step_of(1, None, step, **augment)
        losses.append(loss)
        for world, micro in ((1, 6), (2, None), (2, 2), (4, None), (4, 2)):
            other, others = step_of(world, micro, step, **augment)
            assert other == pytest.approx(loss, abs=1e-6), (step, world, micro)
            torch.testing.assert_close(others, gradients, rtol=1e-3, atol=1e-5)
    assert len({round(loss, 3) for loss in losses}) == 2


@pytest.mark.parametrize(("world", "micro"), [(1, None), (1, 6), (2, 2)])
def test_the_loss_is_the_mean_of_its_rows_and_rows_have_their_numbers(world, micro):
    model, seen = small_vit(), {}
    for rank in range(world):
        task = make_task(model, processes=Processes(rank, world), micro=micro, **BOTH)
        for batch in task.micro_batches(1):
            numbers, share = task.rows(batch)
            losses = task.row_losses(model, batch)
            torch.testing.assert_close(losses.mean() * share, task.loss(model, batch))
            seen |= dict(zip(numbers.tolist(), losses.tolist(), strict=True))
    assert sorted(seen) == list(range(BATCH))
    whole = make_task(model, **BOTH)
    (batch,) = whole.micro_batches(1)
    of_row = dict(zip(whole.rows(batch)[0].tolist(), whole.row_losses(model, batch).tolist(), strict=True))
    assert seen == pytest.approx(of_row, rel=1e-5)


def test_stochastic_depth_differs_between_steps_and_seeds_and_covers_rows():
    model = small_vit()
    drawn = [
        next(make_task(model, seed=seed).micro_batches(step)).paths for seed, step in ((3, 0), (3, 0), (3, 1), (4, 0))
    ]
    assert drawn[0].shape == (6, BATCH)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])
    assert len(drawn[0].unique()) == 6 * BATCH
    assert next(make_task(small_vit(drop_path=0.0)).micro_batches(0)).paths is None


def test_asking_for_a_loss_twice_gives_it_twice():
    model = small_vit()
    task = make_task(model, **BOTH)
    (batch,) = task.micro_batches(0)
    assert task.loss(model, batch).item() == task.loss(model, batch).item()


# -- the stream of batches --------------------------------------------------------------------------------------------


def test_one_stream_serves_consecutive_steps(monkeypatch):
    started = []

    def counting(*arguments, start, **options):
        started.append(start)
        return training_batches(*arguments, start=start, **options)

    monkeypatch.setattr(classification, "training_batches", counting)
    model = small_vit()
    task = make_task(model, micro=8)
    for step in (5, 6, 7):  # the loop takes micro_steps batches, and does not ask whether there is one more
        batches = iter(task.micro_batches(step))
        firsts = [next(batches) for _ in range(task.micro_steps)]
    assert started == [5]
    (fresh, _) = make_task(model, micro=8).micro_batches(7)
    assert torch.equal(firsts[0].images, fresh.images)
    started.clear()
    next(iter(task.micro_batches(8)))  # stopped in the middle of step 8
    (again, _) = task.micro_batches(8)
    (fresh, _) = make_task(model, micro=8).micro_batches(8)
    assert torch.equal(again.images, fresh.images)
    next(iter(task.micro_batches(9)))  # and of step 9: what is left of it is not step 10
    (other, _) = task.micro_batches(10)
    (fresh, _) = make_task(model, micro=8).micro_batches(10)
    assert torch.equal(other.images, fresh.images)
    assert started == [8, 8, 10, 10]
    task.close()
    list(task.micro_batches(11))
    assert started == [8, 8, 10, 10, 11]


def test_counts():
    task = make_task(small_vit(), train=70, micro=4, processes=Processes(1, 2))
    assert (task.steps_per_epoch, task.micro_steps, task.samples_per_step) == (4, 2, 16)
    assert task.samples_after(10) == 160
    assert (task.primary, task.metric, task.higher_is_better, task.unit) == ("valid_top1", "top1", True, "images")
    assert sum(batch.share for batch in task.micro_batches(0)) == 1


# -- unreadable images ------------------------------------------------------------------------------------------------


def test_one_unreadable_image_in_a_thousand_is_left_out_and_named():
    logits = random_logits(1000)
    task = make_task(Oracle(logits), valid=FakeSet(1000, damaged=(41,)), per_forward=100)
    result = measured(task, Oracle(logits))
    assert result == counted(np.delete(logits, 41, axis=0), np.delete(FakeSet(1000).labels, 41))
    assert task.validation_images == 999
    assert task.notes() == ["1 of 1,000 valid images could not be read: image41.png"]


def test_a_resumed_run_knows_them():
    logits = random_logits(1000)
    before, after = (make_task(Oracle(logits), valid=FakeSet(1000, damaged=(41,)), per_forward=100) for _ in range(2))
    measured(before, Oracle(logits))
    after.load_state_dict(before.state_dict())
    record = {"last": {"step": 3, "valid_loss": 1.0, "valid_top1": 2.0, "valid_top5": 3.0}}
    assert after.from_training(record)["valid"]["last"]["images"] == 999
    assert after.notes() == before.notes() != []


def test_more_of_them_stop_an_evaluation():
    logits = random_logits(1000)
    task = make_task(Oracle(logits), valid=FakeSet(1000, damaged=(41, 700)), per_forward=100)
    with pytest.raises(SetupError, match=r"2 of 1,000 valid images cannot be read.*image41\.png, image700\.png"):
        measured(task, Oracle(logits))


def test_a_split_of_nothing_else_is_named_too():
    task = make_task(Oracle(random_logits(50)), valid=FakeSet(50, damaged=tuple(range(50))))
    with pytest.raises(SetupError, match=r"50 of 50 valid images .* image0\.png, .* and 45 more"):
        measured(task, Oracle(random_logits(50)))


@pytest.mark.parametrize(("damaged", "stops"), [((5,), False), ((5, 500), True)])
def test_training_replaces_them_up_to_the_same_share(damaged, stops):
    task = make_task(small_vit(), train=FakeSet(1000, damaged=damaged))
    names = [f"image{index}.png" for index in damaged]
    outcome = pytest.raises(SetupError, match="2 of 1,000 train .*" + ", ".join(names)) if stops else nullcontext()
    with outcome:
        for step in range(task.steps_per_epoch + 1):
            (batch,) = task.micro_batches(step)
            assert len(batch.images) == BATCH
    assert task.notes() == [f"{len(names)} of 1,000 train images could not be read: {', '.join(names)}"]
