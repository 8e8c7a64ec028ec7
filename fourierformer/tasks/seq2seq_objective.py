"""Answering texts with texts: loss of the right answer, and how many answers are exactly right when decoded greedily.

chrF (Popović 2015) is added where sacrebleu is installed: character n-grams that answer and reference share.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fourierformer.attention.engines.evaluation import not_counted
from fourierformer.data.order import EpochOrder
from fourierformer.data.text.pairs import BEGIN, END, PAD, PairsCorpus, decode
from fourierformer.errors import SetupError
from fourierformer.models.seq2seq import EncoderDecoder, greedy
from fourierformer.processes import Processes
from fourierformer.training.objective import Objective, OnProgress, Poll, evaluating
from fourierformer.transfer import to_device

WITHOUT_CHRF = "no chrF: sacrebleu is not installed (pip install 'fourierformer[translation]')"


@dataclass(frozen=True)
class PairBatch:
    source: Tensor  # (B, S) on the device
    keep: Tensor  # (B, S) False where the source is padding
    inputs: Tensor  # (B, T) BEGIN and the answer
    targets: Tensor  # (B, T) the answer and END
    share: float = 1.0  # of this process's pairs of the step
    first: int = 0  # which row of the global batch its first one is


class Seq2SeqObjective(Objective):
    unit, metric, primary, higher_is_better = "pairs", "exact", "valid_exact", True
    protocols = ("greedy",)

    def __init__(
        self,
        corpus: PairsCorpus,
        model: EncoderDecoder,
        *,
        global_batch_size: int,
        micro_batch_size: int | None,
        device: torch.device,
        tokens_per_forward: int = 16384,
        max_tokens: int | None = None,
        processes: Processes | None = None,
        seed: int = 0,
    ):
        self.corpus, self.config, self.device = corpus, model.config, device
        self.processes = processes or Processes()
        self._check_lengths()
        self.order = EpochOrder(len(corpus.splits["train"]), global_batch_size, seed=seed, unit="pairs")
        self.steps_per_epoch, self.samples_per_step = self.order.steps_per_epoch, global_batch_size
        self.own, self.micro_batch_size, self.micro_steps = self.processes.share(global_batch_size, micro_batch_size)
        length = self.config.source_length + self.config.target_length
        self.pairs_per_forward = max(1, tokens_per_forward // length)
        self.max_pairs = None if max_tokens is None else max(1, max_tokens // length)

    def micro_batches(self, step: int) -> Iterator[PairBatch]:
        first = self.processes.rank * self.own
        chosen = self.order.indices(step)[first : first + self.own]
        for start in range(0, self.own, self.micro_batch_size):
            part = chosen[start : start + self.micro_batch_size]
            yield self._batch("train", part, share=len(part) / self.own, first=first + start)

    def loss(self, model: EncoderDecoder, batch: PairBatch) -> Tensor:
        return self.row_losses(model, batch).mean() * batch.share

    def rows(self, batch: PairBatch) -> tuple[Tensor, float]:
        return torch.arange(batch.first, batch.first + len(batch.source)), batch.share

    def row_losses(self, model: EncoderDecoder, batch: PairBatch) -> Tensor:
        return model(batch.source, batch.keep, batch.inputs, batch.targets, PAD)

    def evaluate(self, model: EncoderDecoder, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        loss, answers = self._answered(model, "valid", poll, on_progress)
        return {"valid_loss": loss, self.primary: self._exact("valid", answers)}

    def measure(
        self, model: EncoderDecoder, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """Loss per token of an answer, exactly right answers and chrF of a split, with the number of pairs."""
        if protocol not in self.protocols:
            raise SetupError(f"answers are decoded greedily: --protocol greedy, not {protocol}")
        loss, answers = self._answered(model, split, poll, on_progress)
        found: dict[str, float | int] = {"nll": loss, "exact": self._exact(split, answers)}
        if (chrf := _chrf()) is not None:
            texts = self.corpus.splits[split].texts[: len(answers)]
            found["chrf"] = chrf([decode(ids) for ids in answers], [[answer for _, answer in texts]]).score
        return found | {"pairs": len(answers)}

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        raise SetupError("heads are compared in models of one sequence: not in an encoder-decoder")

    def notes(self) -> list[str]:
        return [WITHOUT_CHRF] if _chrf() is None else []

    @torch.inference_mode()
    def _answered(
        self, model: EncoderDecoder, split: str, poll: Poll, on_progress: OnProgress
    ) -> tuple[float, np.ndarray]:
        """Mean loss of the right answers, and the ids of the model's own answers: (pairs, T)."""
        count = len(self.corpus.splits[split].texts[: self.max_pairs])
        # on the device; each process fills its own rows of the answers
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        answers = torch.zeros(count, self.config.target_length, dtype=torch.int64, device=self.device)
        with evaluating(model):
            for start, own in self.divided(range(0, count, self.pairs_per_forward), poll):
                rows = np.arange(start, min(start + self.pairs_per_forward, count))
                if own:
                    batch = self._batch(split, rows)
                    total += self.row_losses(model, batch).sum(dtype=torch.float64)
                    with not_counted(model):
                        found = greedy(model, batch.source, batch.keep, begin=BEGIN, end=END, padding=PAD)
                    answers[start : start + len(rows), : found.shape[1]] = found
                on_progress(f"{split} greedy", start + len(rows), count)
        return self.processes.sum(total).item() / count, self.processes.sum(answers).cpu().numpy()

    def _exact(self, split: str, answers: np.ndarray) -> float:
        """The share of answers, in per cent, that are the right one to the last token and then end."""
        right = self.corpus.splits[split].answers[: len(answers)]
        padded = np.zeros_like(answers)
        padded[:, : right.shape[1]] = right
        return 100 * float((answers == padded).all(axis=1).mean())

    def _batch(self, split: str, rows: np.ndarray, share: float = 1.0, first: int = 0) -> PairBatch:
        pairs = self.corpus.splits[split]
        source, targets = (torch.from_numpy(part[rows].astype(np.int64)) for part in (pairs.sources, pairs.answers))
        inputs = targets.roll(1, dims=1)
        inputs[:, 0] = BEGIN
        source, keep, inputs, targets = to_device(self.device, source, source != PAD, inputs, targets)
        return PairBatch(source, keep, inputs, targets, share, first)

    def _check_lengths(self) -> None:
        longest = {"source_length": 0, "target_length": 0}
        for pairs in self.corpus.splits.values():
            longest["source_length"] = max(longest["source_length"], pairs.sources.shape[1])
            longest["target_length"] = max(longest["target_length"], pairs.answers.shape[1])
        for key, needed in longest.items():
            if getattr(self.config, key) < needed:
                raise SetupError(
                    f"model.{key}={getattr(self.config, key)}: '{self.corpus.name}' has texts of {needed} tokens, "
                    f"with their end: model.{key}={needed}"
                )


@cache
def _chrf():
    """sacrebleu's corpus_chrf(answers, [references]); None where it is not installed."""
    try:
        from sacrebleu import corpus_chrf
    except ImportError:
        return None
    return corpus_chrf
