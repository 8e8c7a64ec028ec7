"""Tasks whose sequences are drawn: shares of a step, data at first use, no sequence in two splits."""

import pytest
import torch

from fourierformer.data.recall.corpus import RecallCorpus
from fourierformer.data.regression.corpus import RegressionCorpus
from fourierformer.processes import Processes
from tests.data import test_recall_sequences, test_regression_points
from tests.tasks import test_recall, test_regression

PARTS = {"recall": (test_recall.parts, "tokens"), "regression": (test_regression.parts, "values")}


@pytest.mark.parametrize(("parts", "field"), PARTS.values(), ids=PARTS)
def test_micro_batches_and_processes_share_the_sequences_of_a_step(parts, field):
    (whole,) = parts()[0].micro_batches(2)
    found, shares, rows = [], [], []
    for rank in range(2):
        objective, _ = parts(processes=Processes(rank=rank, world=2), micro_batch_size=3)
        for batch in objective.micro_batches(2):
            found.append(getattr(batch.sequences, field))
            shares.append(batch.share)
            rows += objective.rows(batch)[0].tolist()
    assert torch.equal(torch.cat(found), getattr(whole.sequences, field))
    assert shares == [3 / 4, 1 / 4, 3 / 4, 1 / 4]
    assert rows == list(range(8))  # of the global batch


@pytest.mark.parametrize(
    "corpus", [RecallCorpus(test_recall_sequences.data()), RegressionCorpus(test_regression_points.data())]
)
def test_held_out_sequences_are_drawn_at_first_use(corpus):
    assert not {"splits", "notes"} & vars(corpus).keys()
    assert set(corpus.splits) == {"valid", "test"}


@pytest.mark.parametrize(
    ("corpus", "field"),
    [
        (RecallCorpus(test_recall_sequences.data(held_out=20)), "tokens"),
        (RegressionCorpus(test_regression_points.data(held_out=20)), "values"),
    ],
)
def test_no_sequence_of_valid_is_in_test(corpus, field):
    """Else the split that chooses settings and checkpoints would be the one that is reported."""
    valid, test = (getattr(corpus.splits[split], field) for split in ("valid", "test"))
    assert not (valid[:, None] == test[None]).all(-1).any()
