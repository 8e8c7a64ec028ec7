"""train_vit.py as its users start it: the built-in digits, CIFAR-10, ImageNet photographs; stop and go on."""

import io
import json
import os
import signal

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from fourierformer.errors import SetupError
from fourierformer.runs.parts import stored_checkpoint
from fourierformer.runs.spec import stored_hash
from tests.helpers.command_line import IMAGES, only_run, rows, start, status, train_vit

LONG = ("trainer.steps=60", "trainer.eval_every=20", "trainer.save_every=20", "trainer.ema_decay=0.9")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("uninterrupted")
    assert train_vit(*IMAGES, *LONG, f"runs_root={root}") == 0
    return only_run(root)


def newest(run) -> dict:
    return torch.load(sorted((run / "checkpoints").glob("step_*"))[-1] / "state.pt", weights_only=True)


def summary(run) -> dict:
    return json.loads((run / "summary.json").read_text())


def test_a_run_records_best_and_last_of_weights_and_their_average(uninterrupted):
    valid = summary(uninterrupted)["results"]["valid"]
    assert set(valid) == {"best", "last", "ema_best", "ema_last"}
    evaluations = [row for row in rows(uninterrupted) if "valid_top1" in row]
    assert [row["step"] for row in evaluations] == [20, 40, 60]
    for prefix, name in (("", ""), ("ema_", "ema_")):
        top1 = [row[f"{prefix}valid_top1"] for row in evaluations]
        assert valid[f"{name}best"]["top1"] == max(top1)
        assert valid[f"{name}last"]["top1"] == top1[-1]
        assert valid[f"{name}last"]["top5"] == evaluations[-1][f"{prefix}valid_top5"]
    assert {numbers["images"] for numbers in valid.values()} == {64}


def test_a_run_that_diverges_has_no_accuracy(tmp_path, capfd):
    """Logits that are no numbers still have a first and five best classes: the loss says that nothing was learned."""
    assert train_vit(*IMAGES, "optim.lr=1e30", "trainer.max_bad_steps=99", f"runs_root={tmp_path}") == 3
    assert "diverged: no evaluation had finite numbers" in capfd.readouterr().err
    assert status(only_run(tmp_path))["state"] == "diverged"
    with pytest.raises(SetupError, match="diverged before an evaluation with finite numbers"):
        stored_checkpoint(only_run(tmp_path), stored_hash(only_run(tmp_path)))


def test_throughput_and_waiting_are_logged(uninterrupted):
    training = [row for row in rows(uninterrupted, timeless=False) if "train_loss" in row]
    assert all(row["images_per_s"] > 0 and 0 <= row["data_wait"] <= 1 for row in training)
    assert 0 < summary(uninterrupted)["data_wait"] < 1


def test_the_same_command_again_is_done(uninterrupted, capfd):
    assert train_vit(*IMAGES, *LONG, f"runs_root={uninterrupted.parent.parent}") == 0
    assert "already done" in capfd.readouterr().out


@pytest.mark.full("several trainings")
def test_loader_processes_survive_a_stop_and_change_nothing(uninterrupted, tmp_path):
    """Ctrl-C reaches every process of a terminal's group. Two loader processes before the stop, none afterwards."""
    process = start(*IMAGES, *LONG, "data.workers=2", f"runs_root={tmp_path}", script="train_vit")
    for line in process.stdout:
        if "loss" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    run = only_run(tmp_path)
    assert 0 < status(run)["step"] < 60
    assert train_vit(*IMAGES, *LONG, f"runs_root={tmp_path}") == 0
    assert rows(run) == rows(uninterrupted)
    for key, value in newest(uninterrupted)["model"].items():
        assert torch.equal(newest(run)["model"][key], value), key


@pytest.mark.full("decodes and measures 10,000 images")
def test_cifar10_agrees_with_a_count_by_hand(real_data, tmp_path):
    """Trains a few steps on real images; the recorded accuracies against logits of pixels that were read by hand."""
    from fourierformer.runs.parts import open_run

    arguments = ("data=cifar10", f"data.root={real_data / 'cifar10'}", f"data.cache={tmp_path}", "model.depth=1")
    learn = ("augment=digits", "trainer.steps=60", "trainer.eval_every=60", "optim.lr=5e-3")
    more = (
        "schedule.warmup_epochs=0",
        "schedule.per_epoch=false",
        "global_batch_size=32",
        "evaluation.max_images=null",
    )
    assert train_vit(*IMAGES, *arguments, *learn, *more, f"runs_root={tmp_path / 'runs'}") == 0
    run = only_run(tmp_path / "runs")
    valid = summary(run)["results"]["valid"]["last"]
    assert not [note for note in summary(run)["notes"] if "paper's data" in note]

    table = parquet.read_table(real_data / "cifar10" / "test.parquet").to_pylist()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")) for row in table])
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    images = torch.from_numpy(((pixels / 255 - mean) / std).astype(np.float32)).permute(0, 3, 1, 2)
    parts, _ = open_run(run, "cpu", last=True)
    with torch.inference_mode():
        order = parts.model(images).argsort(dim=1, descending=True).numpy()
    labels = np.array([row["label"] for row in table])
    assert valid["images"] == 10_000
    assert valid["top1"] == pytest.approx(100 * (order[:, 0] == labels).mean())
    assert valid["top5"] == pytest.approx(100 * (order[:, :5] == labels[:, None]).any(1).mean())
    assert valid["top1"] > 15  # 60 steps teach a little; chance is 10


@pytest.mark.full("augments photographs at 224 pixels")
def test_imagenet_photographs_through_the_papers_recipe(real_data, tmp_path):
    """1,000 classes at 224 pixels with every augmentation of the recipe, a narrow model."""
    folder = tmp_path / "imagenet"
    folder.mkdir()
    for split in ("train", "val"):
        (folder / split).symlink_to(real_data / "imagenet-sample" / "val")
    command = (
        *("experiment=imagenet_deit_tiny", f"data.root={folder}", f"data.cache={tmp_path}", "attention=fourier"),
        *("debug=smoke_vit", "global_batch_size=12", "augment.mix_batch=4", "trainer.steps=2", "trainer.eval_every=1"),
        *("model.depth=1", "model.dim=24", "trainer.precision=fp32", "evaluation.max_images=50", "data.workers=2"),
    )
    assert train_vit(*command, f"runs_root={tmp_path / 'runs'}") == 0
    run = only_run(tmp_path / "runs")
    values = summary(run)
    assert values["results"]["valid"]["ema_last"]["images"] == 50
    assert values["results"]["valid"]["last"]["nll"] == pytest.approx(np.log(1000), rel=0.02)  # it knows nothing yet
    assert [note for note in values["notes"] if "not the paper's data: 1,000 training images" in note]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("data=cifar10 data.root=/nowhere", "/nowhere"),
        ("model.image_size=30", "model.image_size=30 must be divisible by model.patch=16"),
        ("augment.flip=2", "augment.flip=2"),
        ("augment.randaugment=rand-x", "augment.randaugment"),
        ("global_batch_size=5 augment=cifar", "global_batch_size=5"),
        ("global_batch_size=5000", "global_batch_size=5000: a step takes more images than the 1,437"),
        ("experiment=wt103_small", "model=lm_small"),
        ("trainer.steps=5", "trainer.epochs"),
        ("evaluation.max_images=0", "evaluation.max_images=0: must be at least 1"),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, message, tmp_path, capfd):
    assert train_vit(*arguments.split(), f"runs_root={tmp_path / 'runs'}") == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert "Traceback" not in error


def test_a_dry_run_of_the_papers_recipe_counts_its_steps_without_the_images(tmp_path, capfd):
    """1,281,167 // 1,024 = 1,251 steps an epoch, 300 epochs."""
    command = ("experiment=imagenet_deit_tiny", "attention=softmax", "trainer.precision=fp32", "dry_run=true")
    assert train_vit(*command, f"data.root={tmp_path / 'none'}", f"runs_root={tmp_path}") == 2
    output = capfd.readouterr()
    assert "parameters   5,717,416" in output.out
    assert "375,300 steps of 1,024 images = 384,307,200 images = 300.0 epochs of 1,251 steps" in output.out
    assert "the data is missing" in output.err
    assert not list(tmp_path.iterdir())
