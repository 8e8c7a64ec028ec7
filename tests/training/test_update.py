"""The update of a training step against one that is written out by hand with plain torch, and what the loop gets from a
spec."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.processes import Processes
from fourierformer.runs.parts import build_parts
from fourierformer.runs.train import make_loop
from fourierformer.seeds import seed_of
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.tracking import NoTrackers
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerConfig
from fourierformer.training.loop import TrainingLoop
from fourierformer.training.optim import OptimConfig, build_optimizer
from fourierformer.training.signals import StopSignal
from tests.helpers.command_line import MODEL, spec_of

SHAPE = LMConfig(name="t", layers=2, dim=16, heads=2, inner=32, length=8, dropout=0.2)
# eps is so large that the size of the gradient counts: Adam alone would not see that it was clipped
EPS, BETAS, DECAY, CLIP, SEED = 1e-2, (0.7, 0.95), 0.1, 0.05, 3
RATES = [0.01, 0.03, 0.02, 0.005]  # of steps 1 to 4
RADIUS_RATE = 5.0  # times the others
TRAINER = TrainerConfig(
    steps=4, epochs=None, eval_every=100, save_every=100, log_every=2, clip=CLIP, max_bad_steps=3, micro_batch_size=3,
    ema_decay=None, keep_checkpoints=1, device="cpu", precision="fp32", compile="never", deterministic=False,
)  # fmt: skip
TORCHS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Rows(NoTrackers):
    """Keeps what is logged."""

    def __init__(self):
        self.rows = []

    def log(self, row):
        self.rows.append(row)


def start(directory, optimizer="adam", **changes) -> TrainingLoop:
    draw = np.random.default_rng(0)
    splits = {name: draw.integers(0, 30, size, dtype=np.uint16) for name, size in (("train", 400), ("valid", 200))}
    torch.manual_seed(0)
    radius = {"radius_lr_multiplier": RADIUS_RATE}
    model = WordLM(SHAPE, 30, [10, 20], partial(attention.build, "fourier", **radius)).double()
    config = OptimConfig(name=optimizer, lr=1.0, betas=list(BETAS), eps=EPS, weight_decay=DECAY)
    return TrainingLoop(
        objective=LanguageObjective(
            SimpleNamespace(splits=splits, unit="word", notes=[], name="random"),
            model,
            global_batch_size=4,
            micro_batch_size=TRAINER.micro_batch_size,
            device=torch.device("cpu"),
        ),
        model=model,
        ema=None,
        optimizer=build_optimizer(model, config),
        rate=lambda step: RATES[step - 1],
        config=TrainerConfig(**vars(TRAINER) | changes),
        seed=SEED,
        device=torch.device("cpu"),
        tracker=Rows(),
        checkpoints=Checkpoints(directory, say=lambda message: None),
        stop=StopSignal(),
    )


def by_hand(model: WordLM, objective: LanguageObjective, optimizer: str) -> list[tuple[float, float]]:
    """Trains the model: the loss of every step and the norm of its gradient, before it was clipped."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for name, p in model.named_parameters() if p.dim() <= 1 and "radius" not in name]},
        {"params": [p for name, p in model.named_parameters() if "radius" in name]},
    ]
    plain = TORCHS[optimizer](groups, lr=0.0, betas=BETAS, eps=EPS, weight_decay=0.0, fused=False)
    model.train()
    done = []
    for step, rate in enumerate(RATES):
        for group, times in zip(plain.param_groups, (1.0, 1.0, RADIUS_RATE), strict=True):
            group["lr"] = rate * times
        plain.zero_grad()
        total = 0.0
        for micro, batch in enumerate(objective.micro_batches(step)):
            torch.manual_seed(seed_of(SEED, step, micro, 0))  # of dropout
            losses = model(batch.tokens, batch.targets)
            loss = losses.sum() / (4 * SHAPE.length)  # of the tokens of the step
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
        plain.step()
        done.append((total, norm))
    return done


@pytest.mark.parametrize("optimizer", TORCHS)
def test_four_steps_are_those_of_plain_torch(tmp_path, optimizer):
    fit = start(tmp_path, optimizer)
    model = copy.deepcopy(fit.model)
    fit.run()
    (loss1, norm1), (loss2, norm2), (loss3, norm3), (loss4, norm4) = by_hand(model, fit.objective, optimizer)
    assert min(norm1, norm2, norm3, norm4) > 2 * CLIP
    found, expected = dict(fit.model.named_parameters()), dict(model.named_parameters())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    logged = [row for row in fit.tracker.rows if "lr" in row]
    assert [(row["step"], row["lr"]) for row in logged] == [(2, RATES[1]), (4, RATES[3])]
    assert [row["grad_norm"] for row in logged] == pytest.approx([norm2, norm4], rel=1e-9)
    assert [row["train_loss"] for row in logged] == pytest.approx([(loss1 + loss2) / 2, (loss3 + loss4) / 2], rel=1e-6)


def test_every_process_has_dropout_of_its_own(tmp_path):
    """Two processes with the masks of one would train on half as many."""
    losses = []
    for rank in (0, 0, 1):
        fit = start(tmp_path)
        fit.processes = Processes(rank)  # of one: with several, it would wait for the others
        fit.model.train()
        fit.train_step()
        losses.append(fit.counters[0].item())
    assert losses[0] == losses[1] != losses[2]


def test_in_fp16_the_gradient_is_that_of_fp32(tmp_path):
    """The backward pass is of the loss times 2^16, and the gradient is divided by it before it is measured."""
    norms = []
    for precision in ("fp32", "fp16"):
        fit = start(tmp_path / precision, precision=precision)
        fit.model.float()
        assert fit.run().bad_steps == 0
        norms.append([row["grad_norm"] for row in fit.tracker.rows if "lr" in row])
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def loop_of(*overrides: str) -> TrainingLoop:
    """The loop of a small run on the built-in text."""
    spec = spec_of(*MODEL, "data=builtin_text", "trainer.device=cpu", *overrides)
    return make_loop(build_parts(spec, Processes(), say=lambda line: None), NoTrackers(), None, StopSignal())


def test_the_loop_gets_what_the_spec_says():
    chosen = ("seed=7", "optim.lr=0.03", "optim.betas=[0.5,0.6]", "optim.eps=0.01", "optim.weight_decay=0.2")
    schedule = ("schedule.name=constant", "schedule.warmup_steps=0", "trainer.ema_decay=0.75")
    fit = loop_of(*chosen, *schedule)
    assert (fit.rate(1), fit.seed, fit.ema.decay) == (0.03, 7, 0.75)
    groups = fit.optimizer.param_groups
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.5, 0.6), 0.01)}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.2}


def test_the_schedule_has_the_epochs_and_the_length_of_the_training():
    """DeiT's: constant within an epoch, and one epoch late."""
    length = ("trainer.steps=null", "trainer.epochs=4", "optim.lr=0.25")
    schedule = ("name=cosine", "per_epoch=true", "min_lr=0", "warmup_steps=null", "warmup_epochs=0")
    fit = loop_of(*length, *(f"schedule.{value}" for value in schedule))
    steps = fit.objective.steps_per_epoch
    expected = [0.125 * (1 + math.cos(math.pi * time / 4)) for time in (0, 0, 1, 2)]
    for inside in (1, steps):
        assert [fit.rate(steps * epoch + inside) for epoch in range(4)] == pytest.approx(expected)
