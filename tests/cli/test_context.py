"""scripts/evaluate.py --context: a trained language model on windows of another length."""

import math
import sys

import pytest
import torch

from fourierformer.errors import SetupError
from fourierformer.runs.parts import open_run
from scripts import evaluate
from tests.helpers.command_line import only_run, train_lm

TOKENS = 100


@pytest.mark.parametrize("context", [4, 16])  # trained at 8
def test_each_token_is_predicted_from_so_many_tokens_before_it(finished, context):
    parts, _ = open_run(finished[1], "cpu", limit=TOKENS, context=context)
    measured = parts.objective.measure(parts.model, "test", "sliding", lambda: None, lambda *progress: None)
    tokens = torch.tensor(parts.corpus.splits["test"][:TOKENS].astype("int64"))
    with torch.no_grad():
        first = parts.model(tokens[None, :context], tokens[None, 1 : context + 1]).sum().item()
        later = [
            -parts.model.next_token(tokens[None, i - context : i])[0, tokens[i]].item()
            for i in range(context + 1, TOKENS)
        ]
    assert measured["nll"] == pytest.approx((first + math.fsum(later)) / (TOKENS - 1), rel=1e-5)


def test_positions_that_were_learned_have_no_other_context(smoke, tmp_path):
    assert train_lm(*smoke, "model.position=learned", f"runs_root={tmp_path}") == 0
    with pytest.raises(SetupError, match="It has numbers for each position of training: leave out --context 16"):
        open_run(only_run(tmp_path), "cpu", context=16)


def test_a_task_without_windows_has_none(tmp_path):
    words = ("debug=smoke_regression", "experiment=regression", "attention=softmax", f"runs_root={tmp_path}")
    assert train_lm(*words) == 0
    with pytest.raises(SetupError, match="its task, regression, has no windows of text: no --context"):
        open_run(only_run(tmp_path), "cpu", context=16)


def test_a_run_is_not_measured_on_another_text(finished, monkeypatch, capsys):
    """Its vocabulary is of its own; without a word, the numbers would be taken for those of the other text."""
    monkeypatch.setattr(sys, "argv", ["evaluate.py", str(finished[1]), "--data", "wikitext2"])
    with pytest.raises(SystemExit) as end:
        evaluate.main()
    assert end.value.code == 2
    assert "--data wikitext2 is for a model of transformers (hf:NAME)" in capsys.readouterr().err
