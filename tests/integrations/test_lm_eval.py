"""The evaluation harness measures what we measure."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("lm_eval", reason="the evaluation harness is not installed: pip install lm_eval")

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import fourierformer
from fourierformer.errors import SetupError
from fourierformer.files import read_json
from fourierformer.integrations.lm_eval import TASKS, FourierFormerLM
from fourierformer.runs.trained import export_run
from tests.helpers.command_line import MODEL, REPOSITORY, train_lm

LINES = [" ".join(f"word{(i * i + 3 * line) % 11}" for i in range(60)) + " a <unk> ." for line in range(6)]
TEXT = " \n" + "\n".join(LINES) + "\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(a run on words, the file of its test split)"""
    root = tmp_path_factory.mktemp("harness")
    for name in ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"):
        (root / name).write_text(TEXT)
    data = ["data=wikitext2", f"data.root={root}", f"data.cache={root}/cache", "data.expect=null"]
    options = ["model.length=16", "trainer.steps=30", "evaluation.protocols=[sliding,overlapping]"]
    assert train_lm(*MODEL, *data, *options, f"run_dir={root}/run") == 0
    return root / "run", root / "wiki.test.tokens"


def harness(model, task, text):
    manager = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"text": str(text)})
    options = {"bootstrap_iters": 0, "log_samples": False, "metadata": {"text": str(text)}}
    return simple_evaluate(model, tasks=[task], task_manager=manager, **options)["results"][task]


def rows(*pairs):
    return [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]


@pytest.mark.parametrize(("protocol", "stride"), [("sliding", 1), ("overlapping", 2)])
def test_perplexity_is_ours(run, protocol, stride):
    """The text of all splits is one; that it begins with a blank line, as WikiText does, makes the scored tokens the
    same."""
    ours = read_json(run[0] / "evaluation.json")["results"]["valid"][protocol]
    assert ours["stride"] == stride
    found = harness(FourierFormerLM(run=run[0], stride=stride, device="cpu"), "wikitext_words", run[1])
    assert found["word_perplexity,none"] == pytest.approx(ours["ppl"], rel=1e-6)


def test_every_token_of_a_continuation_is_the_next_one_after_its_window(run, tmp_path):
    export_run(run[0], tmp_path / "model")
    model = FourierFormerLM(pretrained=tmp_path / "model", batch_size=4, device="cpu")
    trained = fourierformer.from_pretrained(tmp_path / "model", "cpu")
    lines = [line.split() for line in LINES]
    pairs = [
        (" ".join(words[:n]), " " + " ".join(words[n : n + m])) for words in lines for n in (1, 3, 30) for m in (1, 2)
    ]
    for (context, rest), (log_p, greedy) in zip(pairs, model.loglikelihood(rows(*pairs)), strict=True):
        ids, total, likeliest = trained.encode(context), 0.0, True
        for word in trained.encode(rest):
            (p,) = trained.model.next_token(torch.tensor([ids[-16:]])).detach()
            total, likeliest = total + p[word].item(), likeliest and p.argmax().item() == word
            ids.append(word)
        assert log_p == pytest.approx(total, abs=1e-5)
        assert greedy == likeliest


def test_short_and_empty_texts(run):
    model = FourierFormerLM(run=run[0], device="cpu")
    one, none, line = model.loglikelihood_rolling(rows(("word1",), ("",), ("\nword1",)))
    assert none == 0
    assert (
        one
        == line
        == pytest.approx(model.trained.model.next_token(torch.tensor([[0]]))[0, model.tok_encode("word1")[0]].item())
    )
    (text,) = model.generate_until(rows(("word1 word2", {"until": [" word2"], "max_gen_toks": 5})))
    assert "word2" not in text
    with pytest.raises(SetupError, match="run=DIRECTORY of a run, or pretrained=FOLDER"):
        FourierFormerLM()


def test_one_stop_and_other_names_of_the_number_of_tokens_are_those_of_the_harness(run):
    model = FourierFormerLM(run=run[0], device="cpu")
    whole, stopped, unstopped, three = model.generate_until(
        rows(
            ("word1", {"until": [], "max_gen_toks": 5}),
            ("word1", {"until": " word3: return", "max_gen_toks": 5}),
            ("word1", {"until": None, "max_gen_toks": 5}),
            ("word1", {"until": [""], "max_new_tokens": 3}),
        )
    )
    assert len(whole.split()) == 5
    assert stopped == unstopped == whole
    assert three.split() == whole.split()[:3]


@pytest.mark.parametrize(
    "option", [{"stride": 17}, {"stride": 0}, {"stride": -1}, {"batch_size": 0}, {"batch_size": -1}]
)
def test_options_under_which_tokens_would_not_be_scored_are_refused(run, option):
    """The context is 16 tokens long: a stride of 17 left out one token between two windows."""
    with pytest.raises(SetupError, match=f"{next(iter(option))}=.* must be at least 1"):
        FourierFormerLM(run=run[0], device="cpu", **option)
    FourierFormerLM(run=run[0], stride=16, batch_size=1, device="cpu")


@pytest.mark.full("the command reads the definitions of all tasks of the harness")
def test_the_command_answers_the_last_words(run):
    """Each paragraph ends in "a <unk> .", whose last word of letters is "a"."""
    command = [sys.executable, "-m", "fourierformer.integrations.lm_eval", "run", "--model", "fourierformer"]
    command += ["--model_args", f"run={run[0]}", "--device", "cpu", "--tasks", "wikitext_last_word"]
    command += ["--metadata", json.dumps({"text": str(run[1])})]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    model = FourierFormerLM(run=run[0], device="cpu")
    context = [" ".join(line.split()[:60]) for line in LINES]
    found = model.loglikelihood(rows(*(("\n" + text, " a") for text in context)))
    perplexity = math.exp(-sum(log_p for log_p, _ in found) / len(found))
    assert f"{perplexity:.2f}" in done.stdout
