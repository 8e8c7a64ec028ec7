"""The task of associative recall: accuracy by hand, shares of a step, the numbers of a whole training."""

import json
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from fourierformer import attention
from fourierformer.data.recall.corpus import RecallCorpus
from fourierformer.data.recall.sequences import draw
from fourierformer.models.config import RecallConfig
from fourierformer.models.recall import RecallModel
from fourierformer.seeds import seed_of
from fourierformer.tasks import task_named
from fourierformer.tasks.recall_objective import CURVE_SEQUENCES, RecallObjective
from fourierformer.tracking.jsonl import read_lines
from tests.data.test_recall_sequences import data
from tests.helpers.command_line import spec_of, train_lm

STILL = (lambda: None, lambda *progress: None)


def parts(name="softmax", held_out=6, **options) -> tuple[RecallObjective, RecallModel]:
    torch.manual_seed(0)
    config = RecallConfig(name="t", layers=1, dim=16, heads=2, inner=0)
    model = RecallModel(config, 64, 40, partial(attention.build, name))
    options = {"micro_batch_size": None, "device": torch.device("cpu"), "seed": 1} | options
    return RecallObjective(RecallCorpus(data(held_out=held_out)), model, global_batch_size=8, **options), model


class Answering(torch.nn.Module):
    """Gives the right answer to every query but the first of each sequence."""

    def forward(self, batch):
        wrong = F.one_hot(torch.zeros_like(batch.answers), 64)
        right = F.one_hot(batch.answers, 64)
        first = (torch.arange(batch.answers.shape[1]) == 0)[:, None]
        return 3.0 * torch.where(first, wrong, right)


@pytest.mark.parametrize("tokens_per_forward", [1, 90, 10_000])
def test_accuracy_and_loss_are_counted_by_hand(tokens_per_forward):
    objective, _ = parts(tokens_per_forward=tokens_per_forward)
    found = objective.measure(Answering(), "test", "1x", *STILL)
    total = math.log(math.exp(3) + 63)
    expected = {"recall": 100 * 7 / 8, "nll": total - 3 * 7 / 8}
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert {key: found[key] for key in ("length", "pairs", "queries", "sequences")} == {
        **{"length": 40, "pairs": 8, "queries": 8, "sequences": 6}
    }


@pytest.mark.parametrize(("protocol", "length"), [("2x", 80), ("4x", 160)])
def test_longer_sequences_are_measured(protocol, length):
    objective, model = parts(max_tokens=160 * 2)
    found = objective.measure(model, "test", protocol, *STILL)
    assert found["length"] == length
    assert found["sequences"] == 320 // length


def test_of_eight_pairs_three_are_asked_for_and_counted():
    _, model = parts()
    options = {"micro_batch_size": None, "device": torch.device("cpu")}
    objective = RecallObjective(RecallCorpus(data(queries=3)), model, global_batch_size=8, **options)
    found = objective.measure(Answering(), "test", "1x", *STILL)
    assert (found["pairs"], found["queries"], found["sequences"]) == (8, 3, 4)
    assert found["recall"] == pytest.approx(100 * 2 / 3)  # all but the first of each sequence


def test_the_loss_of_a_step_is_that_of_its_sequences():
    objective, model = parts()
    (batch,) = objective.micro_batches(3)
    drawn = draw(data(), 8, seed_of(0, "train", 1, 3))
    assert torch.equal(batch.sequences.tokens, drawn.tokens)
    expected = F.cross_entropy(model(drawn).flatten(0, 1), drawn.answers.flatten())
    torch.testing.assert_close(objective.loss(model, batch), expected)


def test_a_training_has_its_area_and_its_step_at_95_per_cent():
    objective, _ = parts()
    for step, accuracy in ((10, 20.0), (20, 60.0), (30, 95.0), (40, 97.0), (50, 94.0)):
        objective.curve[step] = accuracy
    (numbers,) = objective.from_training({})["valid"].values()
    assert numbers["recall"] == 94
    assert numbers["area"] == (20 + 60 + 95 + 97 + 94) / 5
    assert numbers["steps_to_95"] == 30  # the first one
    assert numbers["state"] == 2 * 40 * 16
    objective.curve = {10: 94.9}
    assert "steps_to_95" not in objective.from_training({})["valid"]["curve"]


def test_an_evaluation_belongs_to_the_step_after_the_last_batch_and_survives_a_resume():
    objective, model = parts(held_out=CURVE_SEQUENCES + 1)
    list(objective.micro_batches(9))
    found = objective.evaluate(model, *STILL)
    assert objective.curve == {10: found["valid_recall"]}
    resumed, _ = parts()
    resumed.load_state_dict(objective.state_dict())
    assert (resumed.step, resumed.curve) == (10, objective.curve)


def test_the_curve_is_that_of_the_weights_not_of_their_average(tmp_path):
    """With trainer.ema_decay the loop evaluates both at every step."""
    few = ("data.vocabulary=16", "data.pairs=4", "data.length=8", "data.queries=null", "data.held_out=64")
    far = ("trainer.ema_decay=0.999", "optim.lr=0.1", "schedule.warmup_steps=0", f"runs_root={tmp_path}")
    assert train_lm("experiment=recall", "debug=smoke_recall", "attention=softmax", *few, *far) == 0
    (run,) = tmp_path.glob("*/*/")
    rows = [row for row in read_lines((run / "metrics.jsonl").read_bytes()).rows if "valid_recall" in row]
    weights, average = ([row[f"{name}valid_recall"] for row in rows] for name in ("", "ema_"))
    assert weights != average
    curve = json.loads((run / "summary.json").read_text())["results"]["valid"]["curve"]
    assert (curve["recall"], curve["area"]) == (weights[-1], sum(weights) / len(weights))


def test_chance_and_a_perfect_search_are_noted():
    assert RecallCorpus(data()).notes == ["chance: 3.1 % for any value, 12 % for a value of the sequence"]
    _, search = RecallCorpus(data(keys="vectors", dimension=16)).notes
    assert search == "the key nearest to the query in angle is right for 100.0 % of the queries"


@pytest.mark.parametrize(("data", "is_stream"), [("recall", False), ("recall_vectors", False), ("recall_stream", True)])
def test_only_a_stream_tells_a_token_from_its_companion(data, is_stream):
    """In a stream both are ids of keys and values: with a scale of 1 the model cannot distinguish (a, b) from (b, a).
    In pairs a random scale only slows training down."""
    spec = spec_of("experiment=recall", f"data={data}")
    model = task_named("recall").build_model(spec, partial(attention.build, "softmax"), None)
    assert (model.companion_scale == 1).all() == (not is_stream)
