"""The task of answering texts with texts: exact matches and losses by hand, shares of a step, chrF."""

from functools import partial

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.attention.engines.evaluation import EvaluationMean
from fourierformer.data.text.pairs import BEGIN, END, PAD, VOCABULARY, Pairs, PairsCorpus, decode, encode
from fourierformer.errors import SetupError
from fourierformer.models.config import Seq2SeqConfig
from fourierformer.models.seq2seq import EncoderDecoder
from fourierformer.processes import Processes
from fourierformer.runs.spec import attention_of, task_of
from fourierformer.tasks import seq2seq_objective
from fourierformer.tasks.seq2seq_objective import WITHOUT_CHRF, Seq2SeqObjective
from tests.helpers.command_line import spec_of

TEXTS = [(f"{'x' * (number % 5)}{number}", str(7 * number)) for number in range(40)]  # answers of 1 to 3 characters


ALIKE = dict.fromkeys(("train", "valid", "test"), TEXTS)


def parts(name="softmax", splits=ALIKE, **options) -> tuple[Seq2SeqObjective, EncoderDecoder]:
    torch.manual_seed(0)
    shape = {"layers": 1, "dim": 16, "heads": 2, "inner": 16, "source_length": 8, "target_length": 6}
    builders = dict.fromkeys(("encoder", "decoder", "cross"), partial(attention.build, name))
    model = EncoderDecoder(Seq2SeqConfig(name="t", dropout=0.0, **shape), VOCABULARY, builders)
    corpus = PairsCorpus("t", {split: Pairs(texts) for split, texts in splits.items()})
    options = {"micro_batch_size": None, "device": torch.device("cpu"), "seed": 1} | options
    return Seq2SeqObjective(corpus, model, global_batch_size=8, **options), model


def measured(objective, model):
    return objective.measure(model, "valid", "greedy", lambda: None, lambda *progress: None)


def answering(monkeypatch, answers: list[str], ended=True):
    """Makes the model's answers these, whatever it has learned: by the place of a source among those of TEXTS."""
    places = {tuple(encode(source)): number for number, (source, _) in enumerate(TEXTS)}

    def greedy(model, source, keep, **marks):
        assert marks == {"begin": BEGIN, "end": END, "padding": PAD}
        rows = [encode(answers[places[tuple(ids[kept].tolist())]]) for ids, kept in zip(source, keep, strict=True)]
        rows = [ids if ended else ids[:-1] for ids in rows]
        longest = max(map(len, rows))
        return torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in rows])

    monkeypatch.setattr(seq2seq_objective, "greedy", greedy)


@pytest.mark.parametrize("tokens_per_forward", [1, 14 * 7, 100_000])
def test_exact_matches_are_counted_by_hand(monkeypatch, tokens_per_forward):
    objective, model = parts(tokens_per_forward=tokens_per_forward)
    answers = [answer for _, answer in TEXTS]
    answers[3] += "0"  # too long
    answers[20] = answers[20][:-1]  # too short
    answers[30] = answers[30][::-1]
    answering(monkeypatch, answers)
    found = measured(objective, model)
    assert (found["exact"], found["pairs"]) == (100 * 37 / 40, 40)
    answering(monkeypatch, answers, ended=False)
    assert measured(objective, model)["exact"] == 0


def test_each_split_is_read_for_its_own_purpose(monkeypatch):
    """Training draws from train, an evaluation during it is of valid, and a measurement of the split that it names."""
    splits = {"train": TEXTS[:20], "valid": TEXTS[20:28], "test": TEXTS[28:]}
    objective, model = parts(splits=splits)
    still = {"poll": lambda: None, "on_progress": lambda *progress: None}
    assert objective.steps_per_epoch == 2
    drawn = [decode(ids) for step in range(2) for batch in objective.micro_batches(step) for ids in batch.source]
    assert len(set(drawn)) == 16
    assert set(drawn) <= {source for source, _ in TEXTS[:20]}
    wrong = {0, 1, 2, 20, 28, 29, 30}
    answering(monkeypatch, ["x" if number in wrong else answer for number, (_, answer) in enumerate(TEXTS)])
    found = {split: objective.measure(model, split, "greedy", **still) for split in splits}
    assert [(numbers["exact"], numbers["pairs"]) for numbers in found.values()] == [
        (100 * 17 / 20, 20),
        (100 * 7 / 8, 8),
        (100 * 9 / 12, 12),
    ]
    assert len({numbers["nll"] for numbers in found.values()}) == 3
    of_valid = {"valid_loss": found["valid"]["nll"], "valid_exact": found["valid"]["exact"]}
    assert objective.evaluate(model, **still) == of_valid


def test_layers_measure_themselves_on_the_right_answers_only(monkeypatch):
    """Not on the prefixes of the model's own, of which there is one for every token."""
    objective, model = parts("fourier")

    def means():
        measured(objective, model.train())
        return [module.totals.tolist() for module in model.modules() if isinstance(module, EvaluationMean)]

    with_answers = means()
    answering(monkeypatch, [answer for _, answer in TEXTS])
    assert with_answers == means()
    assert all(count > 0 for _, count in with_answers)


def test_the_loss_is_the_mean_of_the_answers_mean_losses():
    objective, model = parts(max_tokens=14 * 5)
    losses = []
    for source, answer in TEXTS[:5]:
        ids, right = torch.tensor([encode(source)]), encode(answer)
        memory = model.encode(ids, torch.ones_like(ids, dtype=torch.bool))
        logits = model.logits(torch.tensor([[BEGIN, *right[:-1]]]), memory, torch.ones_like(ids, dtype=torch.bool))
        log_p = logits[0].log_softmax(-1)
        losses.append(-sum(log_p[place, token].item() for place, token in enumerate(right)) / len(right))
    found = measured(objective, model)
    assert found["pairs"] == 5
    assert found["nll"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_processes_and_micro_batches_share_a_step():
    def losses(**options):
        objective, model = parts(**options)
        return [(objective.loss(model, batch).item(), objective.rows(batch)[0]) for batch in objective.micro_batches(3)]

    ((whole, rows),) = losses()
    assert rows.tolist() == list(range(8))
    shared = [losses(micro_batch_size=3, processes=Processes(rank, 2)) for rank in range(2)]
    assert sum(loss for part in shared for loss, _ in part) / 2 == pytest.approx(whole, abs=1e-6)
    assert torch.cat([rows for part in shared for _, rows in part]).tolist() == list(range(8))
    assert losses(seed=2)[0][0] != whole


@pytest.mark.parametrize(("key", "text"), [("source_length", ("x" * 8, "1")), ("target_length", ("1", "x" * 6))])
def test_texts_longer_than_the_model_reads_are_refused_before_the_training(key, text):
    """The end takes a place, too: of 8 and of 6."""
    _, model = parts()
    limits = {"global_batch_size": 1, "micro_batch_size": None, "device": torch.device("cpu")}
    fitting = (text[0][1:] or text[0], text[1][1:] or text[1])
    for split in ("train", "valid", "test"):
        texts = {name: Pairs([text if name == split else fitting]) for name in ("train", "valid", "test")}
        with pytest.raises(SetupError, match=rf"texts of {getattr(model.config, key) + 1} tokens.*: model.{key}="):
            Seq2SeqObjective(PairsCorpus("t", texts), model, **limits)
    Seq2SeqObjective(PairsCorpus("t", dict.fromkeys(texts, Pairs([fitting]))), model, **limits)


def test_chrf_is_there_or_missed(monkeypatch):
    objective, model = parts()
    monkeypatch.setattr(seq2seq_objective, "_chrf", lambda: None)
    assert objective.notes() == [WITHOUT_CHRF]
    assert "chrf" not in measured(objective, model)
    monkeypatch.undo()
    sacrebleu = pytest.importorskip("sacrebleu", reason="chrF needs sacrebleu")
    assert objective.notes() == []
    answering(monkeypatch, [answer for _, answer in TEXTS])
    assert measured(objective, model)["chrf"] == pytest.approx(100)
    answering(monkeypatch, ["x" for _ in TEXTS])
    assert measured(objective, model)["chrf"] == 0
    right = [answer for _, answer in TEXTS]
    longer = [f"{answer}00" for answer in right]  # it counts what is missing in an answer more than what is too much
    answering(monkeypatch, longer)
    assert measured(objective, model)["chrf"] == sacrebleu.corpus_chrf(longer, [right]).score
    assert sacrebleu.corpus_chrf(longer, [right]).score > sacrebleu.corpus_chrf(right, [longer]).score


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {"attention": ("Fourier", 0.25), "cross": ("Fourier", 0.25)}),
        (["decoder_attention=gaussian"], {"attention": ("Gaussian", None), "cross": ("Fourier", 0.25)}),
        (["cross_attention=gaussian"], {"attention": ("Fourier", 0.25), "cross": ("Gaussian", None)}),
        (["cross_attention=fourier"], {"attention": ("Fourier", 0.25), "cross": ("Fourier", 1e-6)}),
    ],
)
def test_a_place_has_the_mechanism_of_its_key_or_the_encoders_with_its_knobs(changes, expected):
    spec = spec_of("experiment=builtin_seq2seq", "attention=fourier", "attention.eps=0.25", *changes)
    with torch.device("meta"):
        model = task_of(spec).build_model(spec, attention_of(spec), None)
    for stack, place, value in [
        (model.encoder, "attention", ("Fourier", 0.25)),
        *((model.decoder, place, value) for place, value in expected.items()),
    ]:
        layers = [getattr(layer, place) for layer in stack]
        assert {(type(layer).__name__, getattr(layer, "eps", None)) for layer in layers} == {value}, place
