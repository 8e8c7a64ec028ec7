"""Masked language modelling: the masks' shares and seeds, the loss and accuracy of masked words by hand, its runs."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.data.text import bpe
from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.masks import mask_tokens
from fourierformer.errors import SetupError
from fourierformer.models.config import MaskedLMConfig
from fourierformer.models.mlm import MaskedLM
from fourierformer.processes import Processes
from fourierformer.tasks.masked_objective import MaskedObjective
from fourierformer.tasks.trained import TrainedMaskedModel
from tests.helpers.command_line import train_lm

WORDS, LENGTH = 40, 20
CPU = torch.device("cpu")


def model_of(name="softmax", **changes) -> MaskedLM:
    torch.manual_seed(0)
    values = {"layers": 2, "dim": 16, "heads": 2, "inner": 32, "length": LENGTH, "dropout": 0.0, "mask_rate": 0.15}
    config = MaskedLMConfig(name="t", **values | changes)
    model = MaskedLM(config, WORDS, [], partial(attention.build, name)).eval()
    for parameter in model.parameters():  # far from the uniform distribution
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def objective_of(model: MaskedLM, batch=4, **options) -> MaskedObjective:
    tokens = np.random.default_rng(0).integers(0, WORDS, 25 * LENGTH + 7, dtype=np.uint16)
    corpus = SimpleNamespace(splits=dict.fromkeys(("train", "valid", "test"), tokens), unit="word", name="t", notes=[])
    options = {"micro_batch_size": None, "device": CPU, "seed": 1} | options
    return MaskedObjective(corpus, model, global_batch_size=batch, **options)


def measured(objective, model, split="valid"):
    return objective.measure(model, split, "segment", lambda: None, lambda *progress: None)


def test_a_row_of_the_rule_has_these_shares():
    """15 % chosen; of these 80 % the mask, 10 % a random word (which is the old one in 1 of 40), 10 % the old word."""
    tokens = torch.randint(WORDS, (400, 100), generator=torch.Generator().manual_seed(0))
    seen, positions = mask_tokens(tokens, range(400), 0.15, WORDS)
    chosen = torch.zeros(400 * 100, dtype=torch.bool).index_fill(0, positions, True).view(400, 100)
    assert (chosen.sum(1) == 15).all()
    assert torch.equal(seen[~chosen], tokens[~chosen])
    masked, changed = (seen == WORDS)[chosen], (seen != tokens)[chosen]
    spread = 4 * math.sqrt(0.25 / 6000)  # four standard errors at most, of 6,000 drawn
    assert masked.float().mean().item() == pytest.approx(0.8, abs=spread)
    assert changed.float().mean().item() == pytest.approx(0.9 - 0.1 / WORDS, abs=spread)
    assert chosen.float().mean(0).max() < 0.25  # at no position of all rows
    drawn = seen[chosen][changed & ~masked]  # some 585 words: each of the vocabulary is among them
    assert set(drawn.tolist()) == set(range(WORDS))


@pytest.mark.parametrize(("length", "count"), [(18, 3), (16, 2), (3, 1), (1, 1)])
def test_the_number_of_masked_words_is_rounded_and_at_least_one(length, count):
    """15 % of 18 are 2.7, of 16 are 2.4, of 3 are 0.45."""
    _, positions = mask_tokens(torch.zeros(2, length, dtype=torch.int64), [0, 1], 0.15, WORDS)
    assert len(positions) == 2 * count
    assert ((positions >= length).sum(), positions.max() < 2 * length) == (count, True)


def test_masks_of_training_depend_on_seed_step_and_row_only():
    model = model_of()

    def batches(step, **options):
        found = list(objective_of(model, **options).micro_batches(step))
        return torch.cat([batch.tokens for batch in found]), torch.cat([batch.targets for batch in found])

    seen, targets = batches(3)
    shared = [batches(3, micro_batch_size=1, processes=Processes(rank, 2)) for rank in range(2)]
    assert torch.equal(torch.cat([part[0] for part in shared]), seen)
    assert torch.equal(torch.cat([part[1] for part in shared]), targets)
    epoch = objective_of(model).steps_per_epoch
    for other, _ in (batches(3, seed=2), batches(3 + epoch)):  # the same text under other masks
        assert not torch.equal(other, seen)
        assert (other == seen).float().mean() > 0.6


def test_unequal_micro_batches_add_up_to_the_loss_of_the_step():
    model = model_of()
    whole, divided = objective_of(model), objective_of(model, micro_batch_size=3)
    (batch,) = whole.micro_batches(2)
    parts = list(divided.micro_batches(2))
    assert [len(part.tokens) for part in parts] == [3, 1]
    torch.testing.assert_close(sum(divided.loss(model, part) for part in parts), whole.loss(model, batch))


def test_loss_and_accuracy_are_those_of_the_masked_words_alone():
    model = model_of()
    objective = objective_of(model, tokens_per_forward=3 * LENGTH)
    (batch,) = objective._segments("valid", 25)[1]
    losses, right = [], 0
    for position in batch.positions.tolist():
        row, column = divmod(position, LENGTH)
        hidden = model.hidden(batch.tokens[row, None])[0, column]
        log_p = (model.embedding.weight[:WORDS] @ hidden + model.output.bias).log_softmax(0)
        word = int(objective.corpus.splits["valid"][position])
        losses.append(-log_p[word].item())
        right += log_p.argmax().item() == word
    found = measured(objective, model)
    assert (found["tokens"], found["context"]) == (len(losses), LENGTH) == (25 * 3, LENGTH)
    assert found["nll"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert found["masked_ppl"] == pytest.approx(math.exp(found["nll"]))
    assert found["accuracy"] == pytest.approx(100 * right / len(losses))
    assert objective.loss(model, batch).item() == pytest.approx(found["nll"], abs=1e-5)
    by_row = [sum(losses[start : start + 3]) / 3 for start in range(0, len(losses), 3)]
    assert objective.row_losses(model, batch).tolist() == pytest.approx(by_row, abs=1e-4)


def test_what_is_shorter_than_a_sequence_is_named():
    objective = objective_of(model_of(), max_tokens=LENGTH - 1)
    with pytest.raises(SetupError, match=f"evaluation.max_tokens=19 is shorter than one sequence of {LENGTH} tokens"):
        objective.check_measure("valid", "segment")
    objective.corpus.splits["test"] = objective.corpus.splits["valid"][: LENGTH - 1]
    with pytest.raises(SetupError, match="the test split of t is shorter"):
        objective.check_measure("test", "segment")


def test_every_run_is_scored_on_the_same_words():
    one, two = (next(objective_of(model_of(), seed=seed)._segments("test", 25)[1]) for seed in (1, 2))
    assert torch.equal(one.tokens, two.tokens)
    assert not torch.equal(one.tokens, next(objective_of(model_of())._segments("valid", 25)[1]).tokens)


@pytest.mark.parametrize("name", ["softmax", "fourier", "linear_elu"])
def test_every_token_sees_both_sides(name):
    model = model_of(name)
    tokens = torch.randint(WORDS, (1, LENGTH))
    for position in (0, LENGTH - 1):
        other = tokens.clone()
        other[0, position] = WORDS
        changed = (model.hidden(other) - model.hidden(tokens)).abs().amax(-1)
        assert (changed > 1e-7).all()


@pytest.mark.parametrize(
    ("unit", "text", "filled"),
    [
        ("byte", "[mask] [mask]a [mask]", "x xa x"),
        ("byte", "a\n[mask]\n[mask]", "a\nx\nx"),
        ("word", "a [mask] [mask]", "a x x"),
        ("word", "[mask] a\n[mask]", "x a\nx"),
        ("word", "[mask]\n[mask] a", "x\nx a"),
    ],
)
def test_all_between_two_gaps_stays(unit, text, filled):
    words = {"byte": None, "word": ["<eos>", "a", "x"]}[unit]
    facts = {"unit": unit, "words": words, "vocabulary": len(words or range(256)), "source": "files", "sequence": None}
    corpus = Corpus.of_facts("t", facts)
    config = model_of().config
    model = MaskedLM(config, corpus.vocab_size, [], partial(attention.build, "softmax")).eval()
    with torch.no_grad():
        model.output.bias[corpus.encode("x")] = 1000
    assert TrainedMaskedModel(model, None, corpus, 1).fill(text) == filled


@pytest.mark.parametrize("gaps", [[1], [0, 2], [1, 2], [0, 1, 2]])
def test_a_gap_in_byte_pairs_is_a_token_of_the_text_without_gaps(gaps):
    """There a word begins with the blank before it: the model has seen no blank alone."""
    pytest.importorskip("tokenizers")
    words = ["the", " cat", " sat"]
    tokenizer = bpe.trained(["the cat sat\n"] * 9, 300)
    facts = {"unit": "bpe", "words": None, "vocabulary": tokenizer.get_vocab_size(), "source": "files"}
    corpus = Corpus.of_facts("t", facts | {"sequence": None, "tokenizer": tokenizer.to_str()})
    model = MaskedLM(model_of().config, corpus.vocab_size, [], partial(attention.build, "softmax")).eval()
    seen = []
    model.embedding.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0][0].tolist()))
    text = "".join(" " * (i > 0) + "[mask]" if i in gaps else word for i, word in enumerate(words))
    TrainedMaskedModel(model, None, corpus, 1).fill(text)
    whole = bpe.encoded(tokenizer, "the cat sat")
    assert len(whole) == 3
    assert seen == [[corpus.vocab_size if i in gaps else token for i, token in enumerate(whole)]]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["experiment=builtin_mlm", "evaluation.protocols=[sliding]"], "evaluation.protocols=[segment]"),
        (
            ["experiment=builtin_mlm", "model=lm_tiny"],
            "is not for task=masked: experiment=builtin trains language models",
        ),
        (
            ["experiment=builtin_mlm", "model=deit_tiny"],
            "is not for task=masked: python train_vit.py trains vision models",
        ),
        (["model=mlm_tiny"], "model=mlm_tiny (of builtin) is not for task=language: experiment=builtin_mlm"),
        (["experiment=builtin_mlm", "attention=fast_weight"], "cannot be bidirectional"),
        (["experiment=builtin_mlm", "model.mask_rate=0"], "model.mask_rate=0: must be more than 0"),
        (["experiment=builtin_mlm", "data=builtin_pixels"], "masked language modelling takes text"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys, arguments, line):
    assert train_lm(*arguments, "dry_run=true") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert line in error
