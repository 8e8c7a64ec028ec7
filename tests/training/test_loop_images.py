"""Exact resume with everything that is random about images: augmentation, mixing, stochastic depth, averaged weights,
loader processes. Cut anywhere, it ends bit by bit as if nothing had happened."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import yaml

from fourierformer import attention
from fourierformer.data.images.corpus import load_images
from fourierformer.data.images.order import ImageOrder
from fourierformer.data.images.spec import AugmentConfig, ImageData
from fourierformer.errors import Interrupted
from fourierformer.models.vit import ViTConfig, build_vit
from fourierformer.processes import Processes
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tracking import Trackers
from fourierformer.tracking.jsonl import JsonlTracker
from fourierformer.training.average import MovingAverage
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerConfig
from fourierformer.training.loop import TrainingLoop
from fourierformer.training.optim import OptimConfig, build_optimizer
from tests.helpers.command_line import CLOCK, CONFIGS, read_metrics
from tests.helpers.stops import StopAfter

TRAINER = TrainerConfig(
    steps=4, epochs=None, eval_every=2, save_every=4, log_every=1, clip=None, max_bad_steps=3, micro_batch_size=4,
    ema_decay=0.9, keep_checkpoints=2, device="cpu", precision="fp32", compile="never", deterministic=False,
)  # fmt: skip
MODEL = ViTConfig(name="t", image_size=32, patch=16, dim=16, depth=2, heads=2, mlp_ratio=2, drop_path=0.4)
CPU = torch.device("cpu")


def config(group: str, name: str) -> dict:
    return yaml.safe_load((CONFIGS / group / f"{name}.yaml").read_text())


@pytest.fixture(scope="module")
def corpus():
    return load_images(ImageData(**config("data", "builtin_images")))


def start(directory, corpus, workers: int, polls: int | None = None, **changes) -> TrainingLoop:
    trainer = replace(TRAINER, **changes)
    augment = AugmentConfig(**config("augment", "cifar"))
    torch.manual_seed(1)
    model = build_vit(MODEL, 10, partial(attention.build, "fourier"), seed=1)
    order = ImageOrder(
        len(corpus.splits["train"]),
        8,
        seed=1,
        repeats=1,
        mix_batch=4,
        mixing=True,
        micro_batch=trainer.micro_batch_size,
    )
    task = ClassificationObjective(
        corpus,
        model,
        order=order,
        augment=augment,
        data=ImageData(**config("data", "builtin_images") | {"workers": workers}),
        size=32,
        device=CPU,
        seed=1,
        images_per_forward=30,
        max_images=50,
        processes=Processes(),
    )
    fit = TrainingLoop(
        objective=task,
        model=model,
        ema=MovingAverage(model, 0.9),
        optimizer=build_optimizer(
            model, OptimConfig(name="adamw", lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.05)
        ),
        rate=lambda update: 1e-2 / update,
        config=trainer,
        seed=1,
        device=CPU,
        tracker=Trackers(JsonlTracker(directory / "metrics.jsonl")),
        checkpoints=Checkpoints(directory / "checkpoints", say=lambda message: None),
        stop=StopAfter(polls),
    )
    checkpoint = fit.checkpoints.latest()
    if checkpoint:
        fit.restore(checkpoint[1])
    else:
        fit.tracker.rewind(0)
    return fit


def run(directory, corpus, workers: int, polls: int | None = None, **changes) -> tuple[bool, dict]:
    """Whether it came to its end, and everything that two runs must have in common."""
    fit = start(directory, corpus, workers, polls, **changes)
    try:
        fit.run()
        ended = True
    except Interrupted:
        ended = False
    finally:
        fit.objective.close()
        fit.tracker.close(0)
    rows = [{k: v for k, v in row.items() if k not in CLOCK} for row in read_metrics(directory / "metrics.jsonl")]
    tensors = {**fit.model.state_dict(), **{f"ema {k}": v for k, v in fit.ema.state_dict().items()}}
    for number, moments in fit.optimizer.state_dict()["state"].items():
        tensors |= {f"moment {number} {name}": value for name, value in moments.items()}
    return ended, {"rows": rows, "records": fit.progress.records, "tensors": tensors}


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory):
    ended, outcome = run(tmp_path_factory.mktemp("straight"), corpus, workers=0)
    assert ended
    return outcome


def assert_same(actual: dict, expected: dict) -> None:
    assert actual["rows"] == expected["rows"]
    assert actual["records"] == expected["records"]
    assert actual["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        assert torch.equal(actual["tensors"][key], value), key


def test_loader_processes_change_nothing(corpus, straight, tmp_path):
    assert_same(run(tmp_path, corpus, workers=2)[1], straight)


@pytest.mark.full("a training begun some forty times; test_loop.py cuts one of text")
def test_cut_at_every_poll_it_ends_the_same(corpus, straight, tmp_path):
    """Polls come before steps, between micro-batches, and between batches of an evaluation, raw and averaged."""
    polls = 0
    while True:
        directory = tmp_path / str(polls)
        directory.mkdir()
        ended, outcome = run(directory, corpus, workers=0, polls=polls)
        if ended:
            break
        _, outcome = run(directory, corpus, workers=polls % 5 == 0)  # now and then with a loader process
        assert_same(outcome, straight)
        polls += 1
    assert polls > 4 * 3  # three polls a step, and those of two evaluations


def test_micro_batches_change_nothing_but_rounding(corpus, straight, tmp_path):
    _, whole = run(tmp_path, corpus, workers=0, micro_batch_size=None)
    for one, other in zip(whole["rows"], straight["rows"], strict=True):
        assert one == pytest.approx(other, rel=2e-5)


def test_the_average_is_evaluated_beside_the_weights(straight):
    evaluations = [row for row in straight["rows"] if "valid_top1" in row]
    assert len(evaluations) == 2
    assert all(row["ema_valid_loss"] != row["valid_loss"] for row in evaluations)
    assert set(straight["records"]) == {"best", "last", "ema_best", "ema_last"}
    assert straight["records"]["last"]["valid_loss"] == evaluations[-1]["valid_loss"]
    assert straight["records"]["ema_last"]["valid_top1"] == evaluations[-1]["ema_valid_top1"]


def test_fp16_with_a_loss_scale_resumes_too(corpus, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    ended, straight = run(tmp_path / "one", corpus, workers=0, precision="fp16")
    assert ended
    assert all(torch.isfinite(value).all() for value in straight["tensors"].values())
    run(tmp_path / "two", corpus, workers=0, polls=7, precision="fp16")
    assert_same(run(tmp_path / "two", corpus, workers=0, precision="fp16")[1], straight)
