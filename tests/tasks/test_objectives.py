"""What the objectives of all tasks say about themselves, and how processes share an evaluation of each."""

from functools import partial

import pytest
import torch

from fourierformer.processes import Processes
from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.tasks.masked_objective import MaskedObjective
from fourierformer.tasks.recall_objective import RecallObjective
from fourierformer.tasks.regression_objective import RegressionObjective
from fourierformer.tasks.seq2seq_objective import Seq2SeqObjective
from tests.tasks import test_language, test_masked, test_recall, test_regression, test_seq2seq_task


@pytest.mark.parametrize(
    ("objective", "higher"),
    [
        (LanguageObjective, False),
        (MaskedObjective, False),
        (RegressionObjective, False),
        (RecallObjective, True),
        (Seq2SeqObjective, True),
        (ClassificationObjective, True),
    ],
)
def test_the_best_checkpoint_has_the_lowest_error_or_the_highest_accuracy(objective, higher):
    assert objective.higher_is_better == higher


class Apart(Processes):
    """One of several processes that are asked one after the other: keeps what it would add up with the others."""

    def sum(self, tensor):
        self.kept.append(tensor.clone())
        return tensor


def summed(build, measure, rank: int = 0, world: int = 1) -> list[torch.Tensor]:
    processes = Apart(rank, world)
    object.__setattr__(processes, "kept", [])  # frozen
    measure(*build(processes=processes))
    return processes.kept


def masked(**options):
    model = test_masked.model_of()
    return test_masked.objective_of(model, **options), model


EVALUATIONS = {  # what builds objective and model, and the protocol
    "language, segment": (
        partial(test_language.task_for, test_language.random_tokens(517), 12, global_batch_size=6),
        "segment",
    ),
    "language, sliding": (
        partial(test_language.task_for, test_language.random_tokens(90), 12, global_batch_size=6),
        "sliding",
    ),
    "language, overlapping": (
        partial(test_language.task_for, test_language.random_tokens(150), 17, global_batch_size=6),
        "overlapping",
    ),
    "masked": (masked, "segment"),
    "recall": (test_recall.parts, "1x"),
    "regression": (test_regression.parts, "queries"),
    "pairs": (test_seq2seq_task.parts, "greedy"),
}


@pytest.mark.parametrize("name", EVALUATIONS)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_an_evaluation_without_counting_anything_twice(name, world):
    """Their sums together are those of one process: of losses, right answers and counts alike."""
    build, protocol = EVALUATIONS[name]
    build, polls = partial(build, tokens_per_forward=40), []

    def measure(objective, model):
        meetings = iter(range(10**6))
        objective.measure(model, "valid", protocol, lambda: next(meetings), lambda *progress: None)
        polls.append(next(meetings))

    alone = summed(build, measure)
    shares = [summed(build, measure, rank, world) for rank in range(world)]
    assert alone
    assert len(set(polls[1:])) == 1, f"a poll is a meeting of all processes: {polls[1:]}"
    for expected, *parts in zip(alone, *shares, strict=True):
        assert any((part != 0).any() for part in parts[1:])  # there is work for the others
        torch.testing.assert_close(sum(parts), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_without_dropout_and_leaves_the_mode_as_it_was(name, training):
    build, protocol = EVALUATIONS[name]
    objective, model = build()
    seen = set()
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: seen.add(module.training))
    objective.measure(model.train(training), "valid", protocol, lambda: None, lambda *progress: None)
    assert seen == {False}
    assert {module.training for module in model.modules()} == {training}


@pytest.mark.parametrize("name", ["language, segment", "masked", "recall", "regression", "pairs"])
def test_an_evaluation_during_training_is_of_the_valid_split_alone(name):
    """It selects the best checkpoint: the test split must not."""
    objective, model = EVALUATIONS[name][0]()
    splits = objective.corpus.splits
    for split in set(splits) - {"valid"}:
        del splits[split]
    found = objective.evaluate(model, lambda: None, lambda *progress: None)
    assert found.keys() >= {"valid_loss", objective.primary}
