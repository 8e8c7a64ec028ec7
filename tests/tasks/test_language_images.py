"""Images as a language: every pixel value of every image is scored, each image by itself, in bits per dimension."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fourierformer import attention
from fourierformer.data.text.corpus import Corpus
from fourierformer.errors import SetupError
from fourierformer.models.lm import LMConfig, WordLM
from fourierformer.processes import Processes
from fourierformer.tasks.language_objective import LanguageObjective
from fourierformer.tasks.trained import TrainedLanguageModel

LENGTH, VALUES = 12, 256


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VALUES, count * LENGTH, dtype=np.uint8)


def task_for(tokens: np.ndarray, batch: int = 2, seed: int = 0, **options) -> tuple[LanguageObjective, WordLM]:
    torch.manual_seed(0)
    config = LMConfig(name="t", layers=2, dim=16, heads=2, inner=32, length=LENGTH, dropout=0.5)
    model = WordLM(config, VALUES, [], partial(attention.build, "softmax"))
    for p in model.parameters():  # far from the uniform distribution, so that a wrong position or mask shows
        torch.nn.init.normal_(p, std=0.5)
    corpus = SimpleNamespace(splits={"train": tokens, "test": tokens}, unit="pixel", notes=[], name="t")
    options = {"micro_batch_size": None, "device": torch.device("cpu"), "seed": seed} | options
    return LanguageObjective(corpus, model, global_batch_size=batch, **options), model


def measured(task, model, protocol="segment"):
    return task.measure(model, "test", protocol, lambda: None, lambda *progress: None)


class Uniform(torch.nn.Module):
    """Knows nothing: every one of the 256 values is as likely as any other."""

    def __init__(self, length: int):
        super().__init__()
        self.config = SimpleNamespace(length=length)
        self.output = SimpleNamespace(rare_places=lambda targets: [])
        self.calls = 0

    def forward(self, tokens, targets, rare):
        assert tokens.shape == targets.shape
        self.calls += 1
        return torch.full((targets.numel(),), math.log(256), dtype=torch.float64)


@pytest.mark.parametrize("tokens_per_forward", [1, 3 * LENGTH, 1000])
def test_equal_probabilities_cost_eight_bits_exactly(tokens_per_forward):
    model = Uniform(LENGTH)
    corpus = SimpleNamespace(splits=dict.fromkeys(("train", "test"), images(7)), unit="pixel", notes=[], name="t")
    options = {"global_batch_size": 2, "micro_batch_size": None, "device": torch.device("cpu")}
    task = LanguageObjective(corpus, model, tokens_per_forward=tokens_per_forward, **options)
    result = measured(task, model)
    assert result["bpd"] == pytest.approx(8.0, abs=1e-14)
    assert (result["tokens"], result["context"], result["stride"]) == (7 * LENGTH, LENGTH, LENGTH)
    assert model.calls == {1: 7, 3 * LENGTH: 3, 1000: 1}[tokens_per_forward]


def test_the_language_model_itself_can_know_nothing():
    """The output has no class for a start token: with weights and biases 0 it is uniform over the 256 values."""
    task, model = task_for(images(5))
    torch.nn.init.zeros_(model.embedding.weight)
    torch.nn.init.zeros_(model.output.bias)
    assert measured(task, model)["bpd"] == pytest.approx(8.0, abs=1e-6)  # float32


def literal(model: WordLM, tokens: np.ndarray) -> list[float]:
    """The cost of each image in nats by the chain rule, one value after the other, the future filled with noise."""
    model.eval()
    costs = []
    for image in tokens.reshape(-1, LENGTH).astype(np.int64):
        cost = 0.0
        for t in range(LENGTH):
            seen = torch.randint(0, VALUES, (1, LENGTH))
            seen[0, 0] = 0
            seen[0, 1 : t + 1] = torch.from_numpy(image[:t])
            with torch.no_grad():
                log_p = model.output.log_probabilities(model.hidden(seen)[0], model.embedding.weight)
            cost -= log_p[t, image[t]].item()
        costs.append(cost)
    return costs


@pytest.mark.parametrize("tokens_per_forward", [1, 2 * LENGTH, 1000])
def test_an_image_costs_what_its_values_cost_one_after_the_other(tokens_per_forward):
    tokens = images(5)
    task, model = task_for(tokens, tokens_per_forward=tokens_per_forward)
    result = measured(task, model)
    expected = sum(literal(model, tokens)) / len(tokens)
    assert result["nll"] == pytest.approx(expected, abs=1e-4)
    assert result["bpd"] == result["nll"] / math.log(2)


def test_an_image_does_not_change_the_cost_of_another():
    """Another first image changes the sum by its own cost and by nothing else."""
    tokens = images(4)
    task, model = task_for(tokens)
    both = [measured(task, model)["nll"] * tokens.size]
    changed = tokens.copy()
    changed[:LENGTH] = changed[:LENGTH][::-1]
    task.corpus.splits["test"] = changed
    both.append(measured(task, model)["nll"] * tokens.size)
    costs = [literal(model, version[:LENGTH])[0] for version in (tokens, changed)]
    assert both[1] - both[0] == pytest.approx(costs[1] - costs[0], abs=1e-3)
    assert abs(both[1] - both[0]) > 0.1


def test_a_limit_counts_whole_images_and_one_at_least():
    tokens = images(6)
    for limit, count in {5: 1, LENGTH: 1, 3 * LENGTH - 1: 2, 1000: 6}.items():
        task, model = task_for(tokens, max_tokens=limit)
        result = measured(task, model)
        assert result["tokens"] == count * LENGTH
        assert result["nll"] == pytest.approx(sum(literal(model, tokens)[:count]) / (count * LENGTH), abs=1e-4)


def test_no_window_slides_over_images():
    task, model = task_for(images(4))
    with pytest.raises(SetupError, match=r"evaluation.protocols=\[segment\], or --protocol segment"):
        measured(task, model, "sliding")


def test_the_metric_is_bits_per_dimension():
    task, model = task_for(images(4))
    assert (task.metric, task.primary, task.higher_is_better) == ("bpd", "valid_bpd", False)
    task.corpus.splits["valid"] = task.corpus.splits["test"]
    assert task.evaluate(model, lambda: None, lambda *progress: None).keys() == {"valid_loss", "valid_bpd"}


def test_attention_is_shown_for_what_the_model_reads_of_an_image():
    """0, which begins an image, and all values but the last, which nothing is left to predict from."""
    tokens = images(5)
    count, batches = task_for(tokens)[0].attention_inputs("test", most=4, together=3)
    rows = torch.cat(list(batches))
    assert count == len(rows) == 4
    assert (rows[:, 0] == 0).all()
    assert rows[:, 1:].tolist() == tokens.reshape(-1, LENGTH)[:4, :-1].tolist()


def test_an_image_is_not_continued_as_a_text():
    """Its values have places, counted from its beginning: values at the end of a window would be read at others."""
    facts = {"unit": "pixel", "vocabulary": VALUES, "words": None, "source": None, "sequence": LENGTH}
    trained = TrainedLanguageModel(task_for(images(2))[1], None, Corpus.of_facts("t", facts), 1)
    with pytest.raises(SetupError, match="'t' holds images: the model reads one from its first value on"):
        trained.continued([5, 7], 3)


@pytest.mark.parametrize("micro", [None, 1, 3])
def test_a_step_is_a_batch_of_whole_images(micro):
    tokens = images(9)
    task, model = task_for(tokens, batch=4, micro_batch_size=micro)
    assert task.steps_per_epoch == 2
    assert task.samples_after(3) == 3 * 4 * LENGTH
    parts = list(task.micro_batches(1))
    assert len(parts) == task.micro_steps == -(-4 // (micro or 4))
    assert sum(part.share for part in parts) == pytest.approx(1)
    rows = {tuple(row) for row in tokens.reshape(-1, LENGTH).tolist()}
    assert {tuple(row) for part in parts for row in part.targets.tolist()} <= rows
    model.eval()  # without dropout
    whole = sum(task.loss(model, part) for part in parts)
    other, _ = task_for(tokens, batch=4)
    torch.testing.assert_close(whole, other.loss(model, next(other.micro_batches(1))))


def test_processes_share_a_step():
    tokens = images(9)
    whole = next(task_for(tokens, batch=4, seed=3)[0].micro_batches(2)).targets
    shares = [
        next(task_for(tokens, batch=4, seed=3, processes=Processes(rank=rank, world=2))[0].micro_batches(2)).targets
        for rank in range(2)
    ]
    assert torch.equal(torch.cat(shares), whole)
