"""A causal model of transformers under our protocols: its loss is that of plain windows, its perplexity is per word."""

import math
import re
import sys

import pytest
import torch

pytest.importorskip("transformers", reason='transformers is not installed: pip install -e ".[transformers]"')

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from fourierformer.data.text import bpe
from tests.helpers.command_line import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import evaluate

TEXT = "the kernel of the façade\n\nand a sinc\n" * 6
VALID = "a façade of the sinc\n" * 30
WORDS = 6 * (5 + 3 + 3)  # with a word for each line end


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folders of a model with a tokenizer of byte pairs, and of a text."""
    folder = tmp_path_factory.mktemp("published")
    torch.manual_seed(0)
    size = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 280}
    GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)).save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=bpe.trained([TEXT], 280)).save_pretrained(folder / "model")
    for split, text in (("train", TEXT), ("valid", VALID), ("test", TEXT)):
        (folder / f"wiki.{split}.tokens").write_text(text)
    return folder / "model", folder


def script(monkeypatch, published, *more: str) -> int:
    model, text = published
    words = [f"hf:{model}", "--data", "wikitext2", "--data-root", str(text), "--device", "cpu", *more]
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *words])
    monkeypatch.chdir(text)  # the prepared copy is in data/prepared
    try:
        evaluate.main()
    except SystemExit as end:
        return end.code
    return 0


def test_its_perplexity_per_word_is_that_of_plain_windows(monkeypatch, published, capsys):
    assert script(monkeypatch, published, "--protocol", "sliding", "--context", "8") == 0
    model = GPT2LMHeadModel.from_pretrained(published[0]).eval()
    ids = bpe.encoded(bpe.trained([TEXT], 280), TEXT)
    losses = []
    with torch.no_grad():
        for i in range(1, len(ids)):
            logits = model(torch.tensor([ids[max(0, i - 8) : i]])).logits[0, -1]
            losses.append(-logits.log_softmax(-1)[ids[i]].item())
    nll = math.fsum(losses) / len(losses)
    output = capsys.readouterr().out
    assert (
        f"ppl per word {math.exp(nll * len(ids) / WORDS):,.2f}  (per token {math.exp(nll):,.2f}, nll {nll:.4f})"
        in output
    )
    assert f"context 8, stride 1, {len(losses)} tokens scored, {WORDS} words" in output


def test_a_limit_leaves_the_words_of_so_many_tokens_of_the_split(monkeypatch, published, capsys):
    options = ("--split", "valid", "--protocol", "sliding", "--context", "8", "--limit", "100")
    assert script(monkeypatch, published, *options) == 0
    tokenizer = bpe.trained([TEXT], 280)
    left = tokenizer.decode(bpe.encoded(tokenizer, VALID)[:100])
    words = len(left.split()) + left.count("\n")
    output = capsys.readouterr().out
    assert f"valid split of wikitext2, sliding, context 8, stride 1, 99 tokens scored, {words} words" in output
    per_word, nll = (float(re.search(rf"{name} ([\d.,]+)", output)[1].replace(",", "")) for name in ("word", "nll"))
    assert math.log(per_word) == pytest.approx(nll * 100 / words, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--context", "17"), "reads 1 to 16 tokens: --context 16"),
        (("--protocol", "whole"), "--protocol segment or overlapping or sliding, not whole"),
        (("--data", "wikitext2_bytes"), "perplexity per word needs words, as in --data wikitext2"),
        (("--word-swap", "0.025"), "--word-swap is for runs"),
        (("--checkpoint", "last"), "--checkpoint is for runs"),
        (("--weights", "ema"), "--weights is for runs"),
        (("--limit", "0"), "--limit=0: must be at least 100"),
        (("--data", "wikitext"), "no such data (did you mean 'wikitext2'"),
    ],
)
def test_mistakes_end_in_one_line(monkeypatch, published, capsys, words, message):
    assert script(monkeypatch, published, *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_model_that_is_not_there_is_refused(monkeypatch, published, capsys):
    assert script(monkeypatch, (published[1] / "nothing", published[1])) == 2
    assert "cannot be loaded" in capsys.readouterr().err
