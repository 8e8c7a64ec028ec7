"""What the objectives of all tasks say about themselves."""

import pytest

from fourierformer.tasks.classification_objective import ClassificationObjective
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.tasks.masked_objective import MaskedObjective
from fourierformer.tasks.recall_objective import RecallObjective
from fourierformer.tasks.regression_objective import RegressionObjective
from fourierformer.tasks.seq2seq_objective import Seq2SeqObjective


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
