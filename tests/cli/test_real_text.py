"""Real WikiText through the whole path: prepare, train, evaluate, the paper's vocabulary and cut-offs."""

import json

import pytest

from tests.helpers.command_line import MODEL, only_run, train_lm


@pytest.mark.full("prepares real text, which tests/data/test_text.py counts")
@pytest.mark.parametrize(
    ("data", "folder", "vocabulary", "head", "cutoffs"),
    [("wikitext2", "wikitext-2", 33_278, 33_278, 0), ("wikitext103", "wikitext-103", 267_735, 20_003, 3)],
)
def test_wikitext_trains_and_is_measured(data, folder, vocabulary, head, cutoffs, real_data, tmp_path):
    arguments = (*MODEL, f"data={data}", f"data.root={real_data / folder}", f"data.cache={tmp_path}")
    assert train_lm(*arguments, f"runs_root={tmp_path / 'runs'}", "evaluation.protocols=[segment,sliding]") == 0
    run = only_run(tmp_path / "runs")
    summary = json.loads((run / "summary.json").read_text())
    # one layer of width 16: 4 * 16^2 + 2 * 16 * 16 + 16 + 16 + 4 * 16 = 1,632; embedding and bias 17 per word
    assert summary["parameters"] == 1_632 + 17 * vocabulary + 17 * cutoffs
    valid = summary["results"]["valid"]
    # at its start a model knows nothing: every word of the head as likely as any other, rare ones less
    assert all(head / 2 < valid[protocol]["ppl"] < 2 * vocabulary for protocol in valid)
    assert valid["sliding"]["tokens"] == 4095
    own = [note for note in summary["notes"] if "not the paper's data" in note]
    assert len(own) == (1 if data == "wikitext103" else 0)  # only the head of its training text is at hand
