"""Perplexity: our batched protocols against literal ones, and the position counts of the paper on the real text."""

import contextlib
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.data.text.swap import swap_words
from fourierformer.errors import SetupError
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.processes import Processes
from fourierformer.tasks import task_named
from fourierformer.tasks.language_objective import LanguageObjective, perplexity
from tests.helpers.command_line import spec_of

CPU = torch.device("cpu")


def task_for(tokens: np.ndarray, length: int, name="fourier", unit="word", vocab=60, **limits):
    torch.manual_seed(0)
    config = LMConfig(name="t", layers=2, dim=16, heads=2, inner=32, length=length, dropout=0.5)
    model = WordLM(config, vocab, [20, 40], partial(attention.build, name))
    for p in model.parameters():  # far from the uniform distribution, so that a wrong position or mask shows
        torch.nn.init.normal_(p, std=0.5)
    corpus = SimpleNamespace(splits={"train": tokens, "valid": tokens}, unit=unit, notes=[], name="t")
    limits = {"global_batch_size": 2, "micro_batch_size": None} | limits
    return LanguageObjective(corpus, model, device=CPU, **limits), model


def random_tokens(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 60, n, dtype=np.uint16)


def measured(task, model, protocol, split="valid"):
    return task.measure(model, split, protocol, lambda: None, lambda *progress: None)


@pytest.mark.parametrize("unit", ["word", "pixel"])
def test_a_step_is_of_the_train_split_alone(unit):
    tokens = random_tokens(120)
    task, model = task_for(tokens, 12, unit=unit)
    corpus = SimpleNamespace(splits={"train": tokens}, unit=unit, notes=[], name="t")
    alone = LanguageObjective(corpus, model, device=CPU, global_batch_size=2, micro_batch_size=None)
    (batch,), (expected,) = alone.micro_batches(1), task.micro_batches(1)
    assert torch.equal(batch.targets, expected.targets)


def literal_windows(model: WordLM, tokens: np.ndarray, length: int, stride: int = 1) -> tuple[float, int]:
    """The mean loss and the number of the positions."""
    scored = literal_losses(model, tokens, length, stride)
    return sum(scored.values()) / len(scored), len(scored)


def literal_losses(model: WordLM, tokens: np.ndarray, length: int, stride: int = 1) -> dict[int, float]:
    """One window at a time, each position counted in the first window that holds it; stride 1: the authors' evaluation,
    where the first window counts whole and every other its last position."""
    model.eval()
    scored = {}
    starts = [*range(0, len(tokens) - length, stride), len(tokens) - length - 1]
    with torch.no_grad():
        for start in starts:
            window = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))
            log_p = model.output.log_probabilities(model.hidden(window[None, :-1])[0], model.embedding.weight)
            nll = -log_p.gather(1, window[1:, None]).double()
            for offset in range(length):
                scored.setdefault(start + offset, nll[offset].item())
    return scored


@pytest.mark.parametrize(("world", "micro"), [(1, None), (1, 3), (2, 1)])
def test_the_loss_is_the_mean_of_its_rows_and_rows_have_their_numbers(world, micro):
    """Each row of the global batch once, and what is at it is that row's stream."""
    seen = {}
    for rank in range(world):
        processes = Processes(rank, world)
        task, model = task_for(random_tokens(90), 12, processes=processes, global_batch_size=4, micro_batch_size=micro)
        whole, _ = task.order.batch(1)
        for batch in task.micro_batches(1):
            numbers, share = task.rows(batch)
            torch.testing.assert_close(batch.tokens, whole[numbers])
            losses = task.row_losses(model.eval(), batch)
            torch.testing.assert_close(losses.mean() * share, task.loss(model, batch))
            for i, loss in enumerate(losses):  # each row by itself
                torch.testing.assert_close(loss, model(batch.tokens[i, None], batch.targets[i, None]).mean())
            seen |= dict(zip(numbers.tolist(), losses.tolist(), strict=True))
    assert sorted(seen) == [0, 1, 2, 3]
    assert len(set(seen.values())) == 4


@pytest.mark.parametrize("name", ["softmax", "fourier", "gaussian"])
@pytest.mark.parametrize("tokens_per_forward", [1, 70, 10_000])
def test_sliding_equals_one_window_at_a_time(name, tokens_per_forward):
    tokens = random_tokens(90)
    task, model = task_for(tokens, 12, name, tokens_per_forward=tokens_per_forward)
    nll, count = literal_windows(model, tokens, 12)
    result = measured(task, model, "sliding")
    assert result["nll"] == pytest.approx(nll, abs=1e-5)
    assert result["tokens"] == count == 89
    assert result["ppl"] == pytest.approx(math.exp(nll), rel=1e-4)
    assert (result["context"], result["stride"]) == (12, 1)


@pytest.mark.parametrize("tokens_per_forward", [1, 70, 10_000])
@pytest.mark.parametrize("count", [36, 82, 83, 89])  # whole strides of 2 and a rest
def test_overlapping_windows_move_by_an_eighth_of_the_context(count, tokens_per_forward):
    tokens = random_tokens(count)
    task, model = task_for(tokens, 17, tokens_per_forward=tokens_per_forward)
    nll, scored = literal_windows(model, tokens, 17, stride=2)
    result = measured(task, model, "overlapping")
    assert result["nll"] == pytest.approx(nll, abs=1e-5)
    assert result["tokens"] == scored == count - 1
    assert (result["context"], result["stride"]) == (17, 2)


def test_overlapping_windows_of_a_short_context_slide():
    task, model = task_for(random_tokens(40), 7)
    assert measured(task, model, "overlapping") == measured(task, model, "sliding")


@pytest.mark.parametrize("tokens_per_forward", [1, 300, 10_000])
def test_segments_equal_ten_streams_of_independent_segments(tokens_per_forward):
    """Transformer-XL's evaluation without memory, written out: 10 streams, slices of 12, the last one shorter."""
    tokens = random_tokens(517)
    task, model = task_for(tokens, 12, tokens_per_forward=tokens_per_forward)
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for stream in tokens[:510].reshape(10, 51).astype(np.int64):
            for start in range(0, 50, 12):
                inputs, targets = stream[start : min(start + 12, 50)], stream[start + 1 : min(start + 13, 51)]
                hidden = model.hidden(torch.from_numpy(inputs)[None])[0]
                log_p = model.output.log_probabilities(hidden, model.embedding.weight)
                total -= log_p.gather(1, torch.from_numpy(targets)[:, None]).double().sum().item()
                count += len(targets)
    result = measured(task, model, "segment")
    assert result["tokens"] == count == 500
    assert result["nll"] == pytest.approx(total / count, abs=1e-5)


def test_streams_shorter_than_a_segment_are_one_segment_each():
    """What debug=smoke makes of long contexts: 100 tokens are 10 streams of 10, each 9 predictions in one piece."""
    tokens = random_tokens(500)
    task, model = task_for(tokens, 12, max_tokens=100)
    model.eval()
    streams = torch.from_numpy(tokens[:100].reshape(10, 10).astype(np.int64))
    with torch.no_grad():
        expected = model(streams[:, :-1].contiguous(), streams[:, 1:].contiguous()).double().mean().item()
    result = measured(task, model, "segment")
    assert (result["tokens"], result["context"], result["stride"]) == (90, 9, 9)
    assert result["nll"] == pytest.approx(expected, abs=1e-6)


def test_evaluation_is_without_dropout_and_leaves_the_mode_as_it_was():
    task, model = task_for(random_tokens(200), 12)
    model.train()
    assert measured(task, model, "segment") == measured(task, model, "segment")
    assert model.training


def test_max_tokens_scores_the_first_ones_only():
    task, model = task_for(random_tokens(400), 12, max_tokens=60)
    short, _ = task_for(random_tokens(400)[:60], 12)
    assert measured(task, model, "sliding") == measured(short, model, "sliding")
    assert measured(task, model, "sliding")["tokens"] == 59


def test_a_perplexity_is_exact_up_to_1e304_and_finite_beyond():
    assert [perplexity(nll) for nll in (0.0, 25.0, 699.0)] == [1.0, math.exp(25), math.exp(699)]
    assert math.isfinite(perplexity(1e6))
    assert math.isnan(perplexity(math.nan))


def test_bytes_are_measured_in_bits():
    task, model = task_for(random_tokens(200), 12, unit="byte")
    result = measured(task, model, "segment")
    assert task.primary == "valid_bpc"
    assert result["bpc"] == pytest.approx(result["nll"] / math.log(2))


@pytest.mark.parametrize("protocol", ["segment", "sliding"])
def test_progress_ends_at_its_total(protocol):
    seen = []
    task, model = task_for(random_tokens(207), 12, tokens_per_forward=200)
    result = task.measure(model, "valid", protocol, lambda: None, lambda label, done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {result["tokens"]}
    assert seen[-1][0] == result["tokens"]
    assert len(seen) > 1


def test_a_poll_can_stop_an_evaluation():
    task, model = task_for(random_tokens(200), 12, tokens_per_forward=1)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        task.measure(model, "valid", "sliding", stop, lambda *progress: None)


def test_samples_after_counts_the_short_slice():
    task, _ = task_for(random_tokens(121), 12)  # 2 streams of 60: 59 predictions each, in slices of 12, 12, 12, 12, 11
    assert [task.samples_after(n) for n in (1, 4, 5, 6)] == [24, 96, 118, 142]
    shapes = [task.order.batch(step)[0].numel() for step in range(6)]
    assert sum(shapes) == 142


# -- swapped words ----------------------------------------------------------------------------------------------------


def task_of_words(**options):
    """A text of 9 lines of 9 words, of a vocabulary of 60."""
    tokens = random_tokens(90)
    tokens[tokens == 0] = 1
    tokens[9::10] = 0
    task, model = task_for(tokens, 12, **options)
    task.corpus.words = ["<eos>", "<unk>", "AAA", *(f"w{number}" for number in range(57))]
    task.corpus.ids = {word: number for number, word in enumerate(task.corpus.words)}
    return task, model


def test_swapped_words_are_inputs_and_targets_and_unswapped_targets_count_apart():
    task, model = task_of_words(word_swap=0.3)
    original = task.corpus.splits["valid"]
    tokens, words = swap_words(task.corpus, "valid", 0.3)
    result = measured(task, model, "sliding_swapped")
    losses = literal_losses(model, tokens, 12)  # of the token after each position
    kept = [loss for position, loss in losses.items() if tokens[position + 1] == original[position + 1]]
    assert len(kept) < len(losses) == result["tokens"] == 89
    assert result["nll"] == pytest.approx(sum(losses.values()) / 89, abs=1e-5)
    assert result["nll_unswapped"] == pytest.approx(sum(kept) / len(kept), abs=1e-5)
    assert result["ppl_unswapped"] == pytest.approx(math.exp(result["nll_unswapped"]))
    assert result["swapped"] == words.sum() == 9 * 2


def test_the_seed_chooses_the_words_that_are_swapped():
    task, model = task_of_words()
    tokens, _ = swap_words(task.corpus, "valid", 0.3, seed=5)
    still = {"poll": lambda: None, "on_progress": lambda *progress: None}
    found = task.measure_swapped(model, "valid", "sliding", 0.3, seed=5, **still)
    nll, _ = literal_windows(model, tokens, 12)
    assert found["nll"] == pytest.approx(nll, abs=1e-5)


@pytest.mark.parametrize("protocol", ["segment", "overlapping", "sliding"])
def test_no_swapped_words_give_the_clean_numbers_exactly(protocol):
    task, model = task_of_words(max_tokens=70)
    clean = measured(task, model, protocol)
    swapped = measured(task, model, f"{protocol}_swapped")
    assert swapped == clean | {"swapped": 0, "nll_unswapped": clean["nll"], "ppl_unswapped": clean["ppl"]}


def test_swapped_words_are_counted_up_to_the_limit():
    task, model = task_of_words(max_tokens=70, word_swap=0.3)
    assert measured(task, model, "segment_swapped")["swapped"] == 7 * 2


@pytest.mark.parametrize("word", ["AAA", "<unk>", None])
def test_a_vocabulary_whose_words_cannot_be_swapped_is_refused_before_the_training(word):
    """AAA, or <unk> in its place, is the word that is swapped in."""
    task, _ = task_of_words(word_swap=0.3)
    for name in {"AAA", "<unk>"} - {word}:
        del task.corpus.ids[name]
    task.check_measure("valid", "sliding")
    with contextlib.nullcontext() if word else pytest.raises(SetupError, match="neither AAA nor <unk>"):
        task.check_measure("valid", "sliding_swapped")


class Uniform(torch.nn.Module):
    """A stand-in model that counts what it is asked: every token has probability 1/e."""

    def __init__(self, length: int):
        super().__init__()
        self.config = SimpleNamespace(length=length)
        self.output = SimpleNamespace(rare_places=lambda targets: [])

    def forward(self, tokens, targets, rare):
        assert targets.shape[1] in (1, tokens.shape[1])
        return torch.ones(targets.numel())


@pytest.mark.parametrize(("split", "scored", "segments"), [("valid", 217_645, 217_630), ("test", 245_568, 245_550)])
@pytest.mark.parametrize("length", [256, 384])
def test_position_counts_of_the_paper_on_wikitext(real_data, split, scored, segments, length):
    """PAPER: sliding counts N - 1 positions, segments in 10 streams 217,630 on valid (N = 217,646, 245,569)."""
    text = (real_data / "wikitext-103" / f"wiki.{split}.tokens").read_text(encoding="utf-8")
    tokens = np.zeros(sum(len(line.split()) + 1 for line in text.splitlines()), dtype=np.uint16)
    model = Uniform(length)
    corpus = SimpleNamespace(splits={"train": tokens, split: tokens}, unit="word")
    task = LanguageObjective(
        corpus, model, global_batch_size=2, micro_batch_size=None, device=CPU, tokens_per_forward=2**20
    )
    sliding, segment = measured(task, model, "sliding", split), measured(task, model, "segment", split)
    assert (sliding["tokens"], segment["tokens"]) == (scored, segments)
    assert sliding["nll"] == segment["nll"] == 1.0


@pytest.mark.parametrize(
    ("data", "tokens"),
    [
        (["data=wikitext103"], 267_735),
        (["data=wikitext2", "data.vocabulary_size=1000"], 1000),
        (["data=wikitext2", "data.vocabulary_size=100000"], 33_278),
        (["data=wikitext2", "data.unit=byte"], 256),
        (["data=wikitext2_bpe"], 8192),
        (["data=text"], 8192),
        (["data=enwik8"], 256),
        (["data=builtin_pixels"], 17),
    ],
)
def test_a_plan_without_the_data_has_as_many_tokens_as_will_be_kept(data, tokens):
    assert task_named("language").vocabulary(spec_of("attention=softmax", *data), None) == tokens
