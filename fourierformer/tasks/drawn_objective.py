"""Training on sequences that are drawn anew at every step, from a seed: the part that such tasks share."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fourierformer.data.drawn import DrawnRows
from fourierformer.processes import Processes
from fourierformer.seeds import seed_of
from fourierformer.training.objective import Objective, OnProgress, Poll

Rows = TypeVar("Rows", bound=DrawnRows)


@dataclass(frozen=True)
class DrawnBatch:
    sequences: Any  # on the device
    share: float  # of this process's sequences of the step
    first: int  # which row of the global batch its first one is


class DrawnObjective(Objective):
    steps_per_epoch = 1  # there are no epochs: the specs want lengths in steps

    def __init__(
        self,
        corpus: Any,
        *,
        global_batch_size: int,
        micro_batch_size: int | None,
        device: torch.device,
        tokens_per_forward: int = 16384,
        max_tokens: int | None = None,
        processes: Processes | None = None,
        seed: int = 0,
    ):
        self.tokens_per_forward, self.max_tokens = tokens_per_forward, max_tokens
        self.corpus, self.data, self.device, self.seed = corpus, corpus.data, device, seed
        self.processes = processes or Processes()
        self.own, self.micro_batch_size, self.micro_steps = self.processes.share(global_batch_size, micro_batch_size)
        self.global_batch_size = global_batch_size

    @abstractmethod
    def draw(self, seed: int) -> DrawnRows:
        """The sequences of a step, of all processes."""

    @abstractmethod
    def row_losses(self, model: Any, batch: DrawnBatch) -> Tensor:
        """The mean loss of each sequence, (B,)."""

    def micro_batches(self, step: int) -> Iterator[DrawnBatch]:
        drawn = self.draw(seed_of(self.data.seed, "train", self.seed, step))
        first = self.processes.rank * self.own
        for start in range(first, first + self.own, self.micro_batch_size):
            part = drawn[start : min(start + self.micro_batch_size, first + self.own)]
            yield DrawnBatch(part.to(self.device), share=len(part) / self.own, first=start)

    def loss(self, model: Any, batch: DrawnBatch) -> Tensor:
        return self.row_losses(model, batch).mean() * batch.share

    def rows(self, batch: DrawnBatch) -> tuple[Tensor, float]:
        return torch.arange(batch.first, batch.first + len(batch.sequences)), batch.share

    def evaluation_batches(
        self, sequences: Rows, tokens: int, label: str, poll: Poll, on_progress: OnProgress
    ) -> Iterator[Rows]:
        """The batches of an evaluation that this process computes, on the device, of sequences of `tokens` tokens."""
        together, count = max(1, self.tokens_per_forward // tokens), len(sequences)
        for start, own in self.divided(range(0, count, together), poll):
            if own:
                yield sequences[start : start + together].to(self.device)
            on_progress(label, min(start + together, count), count)

    def limited(self, sequences: Rows, tokens: int) -> Rows:
        """The first sequences with `max_tokens` tokens together, at least one."""
        return sequences if self.max_tokens is None else sequences[: max(1, self.max_tokens // tokens)]
