"""The training loop: exact resume from every step, guarded steps, accumulation, and what it logs."""

import copy
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.errors import Diverged, Interrupted, SetupError
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.processes import Processes
from fourierformer.runs.parts import build_parts
from fourierformer.runs.train import make_loop
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.tracking import NoTrackers, Trackers
from fourierformer.tracking.jsonl import JsonlTracker
from fourierformer.training import loop
from fourierformer.training.average import MovingAverage
from fourierformer.training.checkpoint import Checkpoints
from fourierformer.training.config import TrainerConfig
from fourierformer.training.loop import TrainingLoop
from fourierformer.training.optim import OptimConfig, build_optimizer, guarded_step, set_learning_rate
from fourierformer.training.schedule import ScheduleConfig, learning_rate
from tests.helpers.command_line import CLOCK, read_metrics, spec_of
from tests.helpers.stops import StopAfter

MODEL = LMConfig(name="t", layers=2, dim=16, heads=2, inner=32, length=8, dropout=0.2)
TRAINER = TrainerConfig(
    steps=6,
    epochs=None,
    eval_every=2,
    save_every=3,
    log_every=1,
    clip=0.25,
    max_bad_steps=3,
    micro_batch_size=2,
    ema_decay=0.9,
    keep_checkpoints=2,
    device="cpu",
    precision="fp32",
    compile="never",
    deterministic=False,
)
OPTIM = OptimConfig(name="adam", lr=1e-2, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0)
SCHEDULE = ScheduleConfig(
    name="cosine", warmup_steps=2, warmup_epochs=None, warmup_start=0.0, min_lr=0.0, per_epoch=False
)


def corpus():
    rng = np.random.default_rng(0)
    splits = {name: rng.integers(0, 30, size, dtype=np.uint16) for name, size in (("train", 400), ("valid", 200))}
    return SimpleNamespace(splits=splits, unit="word", notes=[], name="random")


def start(directory, stop=None, seed=1, name="fourier", knobs=None, **changes) -> TrainingLoop:
    """A run in `directory`, resumed from its newest checkpoint if there is one: what run.py does."""
    trainer = TrainerConfig(**{**{f: getattr(TRAINER, f) for f in TRAINER.__dataclass_fields__}, **changes})
    torch.manual_seed(seed)
    model = WordLM(MODEL, 30, [10, 20], partial(attention.build, name, **(knobs or {})), seed=seed)
    ema = None
    if trainer.ema_decay:
        ema = MovingAverage(model, trainer.ema_decay)
    fit = TrainingLoop(
        objective=LanguageObjective(
            corpus(), model, global_batch_size=4, micro_batch_size=trainer.micro_batch_size, device=torch.device("cpu")
        ),
        model=model,
        ema=ema,
        optimizer=build_optimizer(model, OPTIM),
        rate=partial(learning_rate, steps=trainer.steps, peak=OPTIM.lr, config=SCHEDULE, steps_per_epoch=5),
        config=trainer,
        seed=seed,
        device=torch.device("cpu"),
        tracker=Trackers(JsonlTracker(directory / "metrics.jsonl")),
        checkpoints=Checkpoints(directory / "checkpoints", keep=2, say=lambda message: None),
        stop=stop or StopAfter(None),
    )
    checkpoint = fit.checkpoints.latest()
    if checkpoint:
        fit.restore(checkpoint[1])
    else:
        fit.tracker.rewind(0)
    return fit


def outcome(directory, fit: TrainingLoop) -> dict:
    """Everything two runs must have in common, bit by bit; wall-clock numbers left out."""
    fit.tracker.close(0)
    rows = [{k: v for k, v in r.items() if k not in CLOCK} for r in read_metrics(directory / "metrics.jsonl")]
    return {
        "rows": rows,
        "model": fit.model.state_dict(),
        "ema": fit.ema.state_dict() if fit.ema else {},
        "optimizer": fit.optimizer.state_dict()["state"],
        "random": torch.get_rng_state(),
        "records": fit.progress.records,
        "best": fit.checkpoints.best()[0],
    }


def assert_same(one, two, where=""):
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_same(one[key], two[key], f"{where}.{key}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert one == two, where


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    directory = tmp_path_factory.mktemp("straight")
    fit = start(directory)
    fit.run()
    return outcome(directory, fit)


def polls_of_a_whole_run(tmp_path, **changes) -> int:
    stop = StopAfter(10**6)
    start(tmp_path, stop, **changes).run()
    return 10**6 - stop.left


def test_resume_is_bitwise_at_every_cut(tmp_path):
    """Stop at the 1st, 2nd, 3rd, ... poll: between steps, inside accumulation, inside both evaluations. Then resume."""
    changes = {"steps": 4}
    straight = start(tmp_path / "straight", **changes)
    straight.run()
    expected = outcome(tmp_path / "straight", straight)
    polls = polls_of_a_whole_run(tmp_path / "count", **changes)
    assert polls > 15
    for cut in range(polls):
        directory = tmp_path / str(cut)
        with pytest.raises(Interrupted):
            start(directory, StopAfter(cut), **changes).run()
        fit = start(directory, **changes)
        fit.run()
        assert_same(outcome(directory, fit), expected, f"cut {cut}: ")


# attention -> its knobs here, the buffer that changes while it trains, and the distance of cuts
STATEFUL = {
    "performer": ({"features": 8, "redraw": 2}, "frequencies", 7),  # a draw every 2 steps: cuts fall on and off one
    "routing": ({"clusters": 3, "decay": 0.5, "commitment": 0.1}, "centroids", 17),  # a moving average of statistics
    "sac": ({"edges": 2}, "baseline", 17),  # samples, too
}


@pytest.mark.parametrize(
    "name",
    [n if n == "performer" else pytest.param(n, marks=pytest.mark.full("another kind of state")) for n in STATEFUL],
)
def test_a_state_that_changes_while_training_resumes_bitwise(name, tmp_path):
    """Steps 0..5: cuts fall between steps, inside accumulation and inside evaluations."""
    knobs, buffer, apart = STATEFUL[name]
    changes = {"name": name, "knobs": knobs}
    straight = start(tmp_path / "straight", **changes)
    state = straight.model.layers[0].attention.get_buffer(buffer)
    first = state.clone()
    straight.run()
    assert not torch.equal(state, first)
    expected = outcome(tmp_path / "straight", straight)
    for cut in range(3, polls_of_a_whole_run(tmp_path / "count"), apart):
        directory = tmp_path / str(cut)
        with pytest.raises(Interrupted):
            start(directory, StopAfter(cut), **changes).run()
        fit = start(directory, **changes)
        fit.run()
        assert_same(outcome(directory, fit), expected, f"cut {cut}: ")


def test_many_cuts_in_one_run(tmp_path, straight):
    """As on a cluster that preempts all the time: each start gets a little further."""
    for _ in range(60):
        fit = start(tmp_path, StopAfter(9))  # enough for one evaluation at a time
        try:
            fit.run()
            break
        except Interrupted:
            fit.tracker.close(143)
    assert fit.progress.step == 6
    assert_same(outcome(tmp_path, fit), straight)


def test_a_kill_loses_only_the_steps_since_the_last_save(tmp_path, straight):
    """No handler runs: the process is simply gone after some step, with rows in metrics.jsonl beyond the checkpoint."""

    class Killed(BaseException):
        pass

    fit = start(tmp_path)
    original, steps = fit.train_step, iter(range(5))

    def step():
        if next(steps, None) is None:
            raise Killed
        return original()

    fit.train_step = step
    with pytest.raises(Killed):
        fit.run()
    fit.tracker.close(1)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert max(r["step"] for r in rows) == 5
    fit = start(tmp_path)
    assert 2 <= fit.progress.step <= 5
    fit.run()
    assert_same(outcome(tmp_path, fit), straight)


def test_rows_have_every_step_once_in_order(straight):
    training = [r["step"] for r in straight["rows"] if "train_loss" in r]
    evaluations = [r["step"] for r in straight["rows"] if "valid_ppl" in r]
    assert training == [1, 2, 3, 4, 5, 6]
    assert evaluations == [2, 4, 6]
    assert all(a["step"] <= b["step"] for a, b in pairwise(straight["rows"]))
    assert {"radius/00", "radius/01", "ema_valid_ppl"} <= straight["rows"][-1].keys()


def test_rates_are_of_the_steps_since_the_last_row_also_after_a_resume(tmp_path, monkeypatch):
    """The machine is four times as slow after a stop: it shows at once, and is not averaged with what was before."""
    pace = {"seconds": 1.0, "now": 0.0}

    def clock() -> float:
        pace["now"] += pace["seconds"]
        return pace["now"]

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=clock))
    first = start(tmp_path, StopAfter(14))
    with pytest.raises(Interrupted):
        first.run()
    pace["seconds"], done = 4.0, first.progress.step
    start(tmp_path).run()
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "tokens_per_s" in row]
    assert 0 < done < len(rows) == 6
    # the clock is read at both ends of a step and of both its waits for data: 5 intervals for 4 sequences of 8 tokens
    spent = [5.0] * done + [20.0] * (6 - done)
    assert [row["tokens_per_s"] for row in rows] == pytest.approx([32 / seconds for seconds in spent])
    assert [row["seconds"] for row in rows] == pytest.approx(np.cumsum(spent))


def test_waits_for_data_before_a_stop_count(tmp_path, monkeypatch):
    """Of the five seconds of a step, two are waits for its data; those of the step that the stop cut are left out."""
    seconds = count(1)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    first = start(tmp_path, StopAfter(14), log_every=6)
    with pytest.raises(Interrupted):
        first.run()
    assert 0 < first.progress.step < 6
    second = start(tmp_path, log_every=6)
    second.run()
    assert (second.progress.train_seconds, second.progress.wait_seconds) == (6 * 5, 6 * 2)
    (row,) = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "data_wait" in row]
    assert row["data_wait"] == 2 / 5


def test_what_an_objective_keeps_survives_a_resume(tmp_path):
    """The course of a recall, from which its area and its step at 95 % are computed."""
    small = ("debug=smoke_recall", "attention=softmax", "data.held_out=64", "trainer.device=cpu")
    spec = spec_of("experiment=recall", *small)
    first, second = (
        make_loop(
            build_parts(spec, Processes(), say=lambda line: None), NoTrackers(), Checkpoints(tmp_path), StopAfter(None)
        )
        for _ in range(2)
    )
    first.run()
    second.restore(first.checkpoints.latest()[1])
    assert second.objective.curve == first.objective.curve != {}


def test_another_seed_is_another_run(tmp_path, straight):
    fit = start(tmp_path, seed=2)
    fit.run()
    assert not torch.equal(fit.model.embedding.weight, straight["model"]["embedding.weight"])


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_training_and_evaluations_have_the_precision_of_the_run(tmp_path, precision, dtype):
    fit, seen = start(tmp_path, steps=2, precision=precision), set()

    def see(module, inputs, output):
        seen.add((module.training, output.dtype))

    for model in (fit.model, fit.ema.module):
        model.layers[0].feed_forward[0].register_forward_hook(see)
    fit.run()
    assert seen == {(True, dtype), (False, dtype)}


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    """Without dropout, micro-batches of 1, 2 (and 3 + 1: unequal) sum to the gradient of the batch of 4."""
    gradients = {}
    for micro in (4, 2, 1, 3):
        fit = start(tmp_path / str(micro), micro_batch_size=micro)
        fit.model.eval()
        for batch in fit.objective.micro_batches(0):
            fit.objective.loss(fit.model, batch).backward()
        gradients[micro] = torch.cat([p.grad.flatten() for p in fit.model.parameters()])
    for micro in (2, 1, 3):
        torch.testing.assert_close(gradients[micro], gradients[4], rtol=1e-4, atol=1e-7)


def poison(fit: TrainingLoop, bad_steps: set[int], what: str = "both"):
    """The loss of these steps is NaN, as a broken batch would make it, and with it the gradient; or one of the two."""
    loss = fit.objective.loss

    def factor() -> float:
        return float("nan") if fit.progress.step in bad_steps else 1.0

    if what == "gradient":  # as one that overflows float16
        fit.model.output.bias.register_hook(lambda gradient: gradient * factor())
    elif what == "loss":
        fit.objective.loss = lambda model, batch: loss(model, batch) + (factor() - 1)
    else:
        fit.objective.loss = lambda model, batch: loss(model, batch) * factor()


@pytest.mark.parametrize("what", ["loss", "gradient", "both"])
def test_a_bad_step_changes_nothing_and_is_counted(tmp_path, what):
    fit = start(tmp_path, steps=4, eval_every=100, ema_decay=None)
    poison(fit, {1}, what)
    states = []
    original = fit.train_step

    def step():
        states.append(copy.deepcopy((fit.model.state_dict(), fit.optimizer.state_dict()["state"])))
        return original()

    fit.train_step = step
    fit.run()
    before, after = states[1], states[2]
    assert_same(dict(enumerate(before[1].values())), dict(enumerate(after[1].values())), "optimizer")
    assert_same(before[0], after[0], "weights")
    assert not torch.equal(states[3][0]["embedding.weight"], after[0]["embedding.weight"])  # the next step trains again
    assert fit.progress.bad_steps == 1
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert "train_loss" not in rows[1]
    assert rows[2]["bad_steps"] == 1


@pytest.mark.parametrize(("on_a_gpu", "step"), [(False, 4), (True, 6)])
def test_too_many_bad_steps_in_a_row_stop_the_run(tmp_path, on_a_gpu, step):
    """On a GPU at the next log step, even if good ones came between."""
    fit = start(tmp_path, eval_every=100, log_every=6)
    fit.reads_each_step = not on_a_gpu
    poison(fit, {1, 2, 3})
    with pytest.raises(Diverged, match=rf"diverged at step {step}: .* 3 steps in a row.*lower optim.lr"):
        fit.run()
    assert fit.progress.step == step


def test_bad_steps_apart_do_not_stop_it(tmp_path):
    fit = start(tmp_path)
    poison(fit, {0, 1, 3, 4})
    assert fit.run().bad_steps == 4


def test_a_stop_between_two_rows_changes_neither_their_mean_loss_nor_their_bad_steps(tmp_path):
    """One row for six steps, of which the second and the fifth are bad."""

    def begun(name, polls=None):
        fit = start(tmp_path / name, StopAfter(polls), log_every=6, eval_every=100)
        poison(fit, {1, 4})
        return fit

    stopped = begun("stopped", 11)  # three polls a step: the fourth one is stopped
    with pytest.raises(Interrupted):
        stopped.run()
    assert stopped.progress.step == 3
    logged = []
    for name in ("straight", "stopped"):
        assert begun(name).run().bad_steps == 2
        (row,) = [row for row in read_metrics(tmp_path / name / "metrics.jsonl") if "train_loss" in row]
        logged.append((row["train_loss"], row["bad_steps"]))
    assert logged[0] == logged[1]


def test_bad_steps_in_a_row_count_across_a_stop(tmp_path):
    first = start(tmp_path, StopAfter(11), eval_every=100)
    poison(first, {1, 2})
    with pytest.raises(Interrupted):
        first.run()
    assert first.progress.step == 3
    second = start(tmp_path, eval_every=100)
    poison(second, {3})
    with pytest.raises(Diverged, match="3 steps in a row"):
        second.run()


def test_a_resumed_run_has_the_loss_scale_of_before(tmp_path):
    """A step whose gradients are not finite halves that of fp16, which begins at 2^16."""
    changes = {"precision": "fp16", "eval_every": 100}
    first = start(tmp_path, StopAfter(4), **changes)
    poison(first, {0})
    with pytest.raises(Interrupted):
        first.run()
    assert first.progress.step == 1
    assert start(tmp_path, **changes).scaler.get_scale() == 2.0**15


def test_from_a_bad_step_layers_learn_no_statistics(tmp_path):
    """The centroids of routing are a moving average of what the layers see."""
    fit = start(tmp_path, name="routing", knobs=STATEFUL["routing"][0])
    centroids, losses = fit.model.layers[0].attention.get_buffer("centroids"), fit.objective.row_losses
    fit.model.train()
    fit.objective.row_losses = lambda model, batch: losses(model, batch) * float("nan")
    before = centroids.clone()
    fit.train_step()
    assert torch.equal(centroids, before)
    fit.objective.row_losses = losses
    fit.train_step()
    assert not torch.equal(centroids, before)


@pytest.mark.filterwarnings("ignore:training ends at step")
def test_a_run_that_ends_between_log_steps_knows_its_bad_steps_on_a_gpu_too(tmp_path):
    """Patience ends it where nothing is logged: weights that no step changed are no better."""
    fit = start(tmp_path, steps=60, eval_every=2, log_every=50, patience=1, max_bad_steps=10)
    fit.reads_each_step = False  # as on a GPU
    poison(fit, {2, 3})
    end = fit.run()
    assert (end.step, end.bad_steps) == (4, 2)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_guarded_step_skips_on_the_flag_alone(value):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
    parameter.grad = torch.tensor([value, 1.0, 1.0])
    guarded_step(optimizer, torch.tensor(1.0))
    assert torch.equal(parameter, torch.ones(3))
    parameter.grad = torch.ones(3)
    guarded_step(optimizer, torch.tensor(0.0))
    # Adam's first step is lr * sign(gradient)
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))


def test_best_checkpoint_is_that_of_the_lowest_valid_perplexity(tmp_path):
    fit = start(tmp_path, steps=12, eval_every=1)
    fit.run()
    fit.tracker.close(0)
    rows = [r for r in read_metrics(tmp_path / "metrics.jsonl") if "valid_ppl" in r]
    best = min(rows, key=lambda r: r["valid_ppl"])
    step, state = fit.checkpoints.best()
    kept = state["progress"]["records"]["best"]
    assert (step, kept["step"], kept["valid_ppl"]) == (best["step"], best["step"], best["valid_ppl"])


def test_the_last_step_is_evaluated_and_saved_whatever_the_intervals(tmp_path):
    """Also where it is not the best one: at a rate of 0 no evaluation is better than the first."""
    fit = start(tmp_path, steps=5, eval_every=2, save_every=3)
    fit.rate = lambda step: 0.0
    fit.run()
    assert (fit.progress.records["best"]["step"], fit.progress.records["last"]["step"]) == (2, 5)
    assert fit.checkpoints.latest()[0] == 5


@pytest.mark.filterwarnings("ignore:training ends at step")
@pytest.mark.parametrize("patience", [1, 3])
def test_patience_ends_training_after_so_many_evaluations_without_a_better_one(tmp_path, patience):
    fit = start(tmp_path, steps=60, eval_every=2, patience=patience)
    fit.run()
    fit.tracker.close(0)
    values = [r["valid_ppl"] for r in read_metrics(tmp_path / "metrics.jsonl") if "valid_ppl" in r]
    stale = [
        min(values[i - patience + 1 : i + 1]) >= min(values[: i - patience + 1]) for i in range(patience, len(values))
    ]
    assert stale == [False] * (len(stale) - 1) + [True]
    assert fit.progress.step == 2 * len(values) < 60
    assert fit.checkpoints.newest_step() == fit.progress.step


@pytest.mark.filterwarnings("ignore:training ends at step")
@pytest.mark.full("resumes at every 31st poll; a run without patience does, too")
def test_a_run_with_patience_resumes_bitwise_and_ends_at_the_same_step(tmp_path):
    changes = {"steps": 60, "eval_every": 2, "patience": 2}
    fit = start(tmp_path / "straight", **changes)
    fit.run()
    straight = outcome(tmp_path / "straight", fit)
    for cut in range(0, polls_of_a_whole_run(tmp_path / "count", **changes), 31):
        with pytest.raises(Interrupted):
            start(tmp_path / str(cut), StopAfter(cut), **changes).run()
        fit = start(tmp_path / str(cut), **changes)
        fit.run()
        assert_same(outcome(tmp_path / str(cut), fit), straight, f"cut {cut}: ")


def test_ema_is_the_average_of_the_weights(tmp_path):
    fit = start(tmp_path, steps=3, eval_every=100)
    seen, original = [], fit.train_step

    def step():
        result = original()
        seen.append(fit.model.output.bias.detach().clone())
        return result

    fit.train_step = step
    fit.run()
    expected = seen[0]
    for bias in seen[1:]:
        expected = 0.9 * expected + 0.1 * bias
    torch.testing.assert_close(fit.ema.module.output.bias.detach(), expected)


def test_schedule_is_the_papers():
    """Warm-up 2,000 of 500,000 steps to 2.5e-4, then 1.25e-4 (1 + cos(pi step / steps))."""
    paper = replace(SCHEDULE, warmup_steps=2000)
    rate = partial(learning_rate, steps=500_000, peak=2.5e-4, config=paper, steps_per_epoch=4201)
    assert rate(1) == pytest.approx(1.25e-7)
    assert rate(1000) == pytest.approx(1.25e-4)
    assert rate(2000) == pytest.approx(2.5e-4, rel=1e-4)
    assert rate(250_000) == pytest.approx(1.25e-4)
    assert rate(500_000) == pytest.approx(0.0, abs=1e-12)
    constant = replace(SCHEDULE, name="constant", warmup_steps=10)
    rate = partial(learning_rate, steps=100, peak=1.0, config=constant, steps_per_epoch=7)
    assert [rate(n) for n in (5, 10, 99)] == [0.5, 1.0, 1.0]


def deit_rate(epoch: int) -> float:
    """Rate of the first update of an epoch under the paper's vision schedule, 1,251 steps per epoch."""
    deit = replace(SCHEDULE, warmup_steps=None, warmup_epochs=5, warmup_start=1e-6, min_lr=1e-5, per_epoch=True)
    return learning_rate(epoch * 1251 + 1, steps=300 * 1251, peak=1e-3, config=deit, steps_per_epoch=1251)


def test_vision_schedule_is_deits():
    """Against timm's scheduler, driven as in DeiT's main.py: made before epoch 0, `step(epoch)` after each epoch."""
    from timm.scheduler.cosine_lr import CosineLRScheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    peer = CosineLRScheduler(optimizer, t_initial=300, lr_min=1e-5, warmup_lr_init=1e-6, warmup_t=5)
    for epoch in range(300):
        assert deit_rate(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), epoch
        peer.step(epoch)
    # the rate that a training log of this recipe shows in its last epoch
    assert deit_rate(299) == pytest.approx(1.0108562e-05, rel=1e-7)


def test_a_rate_per_epoch_is_constant_within_one():
    deit = replace(SCHEDULE, warmup_steps=None, warmup_epochs=2, per_epoch=True)
    rates = [learning_rate(n, steps=50, peak=1.0, config=deit, steps_per_epoch=5) for n in range(1, 51)]
    assert all(len(set(rates[start : start + 5])) == 1 for start in range(0, 50, 5))
    assert rates[0] == rates[5] == 0.0
    assert rates[10] == 0.5


def test_epochs_become_steps():
    config = replace(TRAINER, steps=None, epochs=2.5, eval_every=None, save_every=None).in_steps(10)
    assert (config.steps, config.eval_every, config.save_every) == (25, 10, 10)
    assert replace(TRAINER, eval_every=3).in_steps(10).eval_every == 3
    lengths = {epochs: replace(TRAINER, steps=None, epochs=epochs).in_steps(10).steps for epochs in (0.01, 0.26, 1.14)}
    assert lengths == {0.01: 1, 0.26: 3, 1.14: 11}  # the nearest number of steps, and at least one
    assert replace(SCHEDULE, warmup_steps=None, warmup_epochs=0.26).warmup(10) == 3


def test_a_run_has_one_length():
    with pytest.raises(SetupError, match=r"trainer.steps=6 and trainer.epochs=2 are two lengths"):
        replace(TRAINER, epochs=2)
    with pytest.raises(SetupError, match="no length given"):
        replace(TRAINER, steps=None)
    with pytest.raises(SetupError, match="give one"):
        replace(SCHEDULE, warmup_epochs=2)


def test_parameter_groups_follow_the_marks_of_parameters():
    model = WordLM(MODEL, 30, [], lambda g: attention.build("fourier_head", g, radius_lr_multiplier=5.0))
    optimizer = build_optimizer(
        model, OptimConfig(name="adamw", lr=0.1, betas=[0.9, 0.99], eps=1e-8, weight_decay=0.05)
    )
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    set_learning_rate(optimizer, 0.01)
    for name, p in model.named_parameters():
        group = of[id(p)]
        assert group["weight_decay"] == (0.05 if p.dim() > 1 and "radius" not in name else 0.0), name
        assert group["lr"] == pytest.approx(0.05 if "radius" in name else 0.01), name
