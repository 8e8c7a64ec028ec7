"""Masked language modelling: loss, and perplexity and accuracy of the masked words.

The masks of training are a function of (seed, step, row of the global batch); those of an evaluation of (split, row)
alone, so that all runs are scored on the same words.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.masks import mask_tokens
from fourierformer.errors import SetupError
from fourierformer.models.mlm import MaskedLM
from fourierformer.seeds import seed_of
from fourierformer.tasks.language_objective import TokenObjective, perplexity
from fourierformer.training.objective import OnProgress, Poll, evaluating
from fourierformer.transfer import to_device


@dataclass(frozen=True)
class MaskedBatch:
    tokens: Tensor  # (B, L) on the device
    positions: Tensor  # (n,) of the masked words, counted row by row
    targets: Tensor  # (n,) the words that stood there
    rare: list[Tensor]  # places of rare words among the targets, per cluster; computed on the host, to avoid a sync
    share: float = 1.0  # of this process's tokens of the step
    first: int = 0  # which row of the global batch its first one is


class MaskedObjective(TokenObjective):
    metric, primary = "masked_ppl", "valid_masked_ppl"
    protocols = ("segment",)

    def __init__(self, corpus: Corpus, model: MaskedLM, **options):
        super().__init__(corpus, model, **options)
        self.rate, self.vocab_size = model.config.mask_rate, model.vocab_size

    def micro_batches(self, step: int) -> Iterator[MaskedBatch]:
        tokens, _ = self.order.batch(step, self.processes.rank, self.processes.world)
        row = self.processes.rank * len(tokens)  # of the global batch
        for part in tokens.split(self.micro_batch_size):
            seeds = [seed_of("mask", self.seed, step, row + i) for i in range(len(part))]
            yield self._masked(part, seeds, share=len(part) / len(tokens), first=row)
            row += len(part)

    def loss(self, model: MaskedLM, batch: MaskedBatch) -> Tensor:
        """All rows of a step have the same number of masked words: the mean over a part counts by its rows."""
        return model(batch.tokens, batch.positions, batch.targets, batch.rare, mean=True) * batch.share

    def row_losses(self, model: MaskedLM, batch: MaskedBatch) -> Tensor:
        losses = model(batch.tokens, batch.positions, batch.targets, batch.rare)
        return losses.unflatten(0, (len(batch.tokens), -1)).mean(1)

    def evaluate(self, model: MaskedLM, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        found = self.measure(model, "valid", "segment", poll, on_progress)
        return {"valid_loss": found["nll"], self.primary: found[self.metric], "valid_accuracy": found["accuracy"]}

    def check_measure(self, split: str, protocol: str) -> None:
        self._segments(split, together=1)

    @torch.inference_mode()
    def measure(
        self, model: MaskedLM, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """Mean NLL, perplexity and accuracy of the masked words of a split, with the numbers that make them
        comparable."""
        if protocol not in self.protocols:
            raise SetupError(f"masked words are scored in whole segments: --protocol segment, not {protocol}")
        together = max(1, self.tokens_per_forward // self.length)
        count, batches = self._segments(split, together)
        # stays on the device, one host sync at the end: [sum of the losses, right answers, masked words]
        totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        done = 0
        with evaluating(model):
            for batch, own in self.divided(batches, poll):
                if own:
                    log_p = model.log_probabilities(batch.tokens, batch.positions)
                    totals[0] -= log_p.gather(1, batch.targets[:, None]).sum(dtype=torch.float64)
                    totals[1] += (log_p.argmax(1) == batch.targets).sum()
                    totals[2] += len(batch.targets)
                done += len(batch.tokens)
                on_progress(f"{split} {protocol}", done, count)
        loss, right, words = self.processes.sum(totals).tolist()
        nll = loss / words
        return {
            "nll": nll,
            self.metric: perplexity(nll),
            "accuracy": 100 * right / words,
            "tokens": int(words),
            "context": self.length,
        }

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """The first segments of the text as an evaluation shows them: with their masks."""
        count, batches = self._segments(split, together, most)
        return count, (batch.tokens for batch in batches)

    def _segments(self, split: str, together: int, most: int | None = None) -> tuple[int, Iterator[MaskedBatch]]:
        """The number of segments of a split, `most` at most, and batches of them with fixed masks. A last segment that
        is not full is left out."""
        tokens = self.corpus.splits[split][: self.max_tokens]
        count = min(len(tokens) // self.length, most or len(tokens))
        if count == 0:
            limited = len(tokens) < len(self.corpus.splits[split])
            text = f"the {split} split of {self.corpus.name}"
            short = f"evaluation.max_tokens={self.max_tokens}" if limited else text
            raise SetupError(f"{short} is shorter than one sequence of {self.length} tokens")
        segments = torch.from_numpy(tokens[: count * self.length].astype("int64")).view(-1, self.length)
        return count, (
            self._masked(part, [seed_of("mask", split, start + i) for i in range(len(part))])
            for start, part in zip(range(0, count, together), segments.split(together), strict=True)
        )

    def _masked(self, tokens: Tensor, seeds: list[int], share: float = 1.0, first: int = 0) -> MaskedBatch:
        seen, positions = mask_tokens(tokens, seeds, self.rate, self.vocab_size)
        targets = tokens.flatten()[positions]
        rare = self.rare_places(targets)
        seen, positions, targets, *rare = to_device(self.device, seen, positions, targets, *rare)
        return MaskedBatch(seen, positions, targets, rare, share, first)
