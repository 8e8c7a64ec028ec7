"""Associative recall: loss and accuracy at the positions of the queries, and the course of both over training."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import layers_of
from fourierformer.data.recall.corpus import RecallCorpus
from fourierformer.data.recall.sequences import Sequences, draw
from fourierformer.data.recall.spec import CURVE, LENGTHS
from fourierformer.errors import SetupError
from fourierformer.models.recall import RecallModel
from fourierformer.processes import Processes
from fourierformer.seeds import seed_of
from fourierformer.training.objective import Objective, OnProgress, Poll, evaluating

LEARNED = 95.0  # per cent
CURVE_SEQUENCES = 64  # of valid, at every evaluation during training


@dataclass(frozen=True)
class RecallBatch:
    sequences: Sequences  # on the device
    share: float  # of this process's sequences of the step
    first: int  # which row of the global batch its first one is


class RecallObjective(Objective):
    unit, metric, primary, higher_is_better = "tokens", "recall", "valid_recall", True
    protocols = tuple(reversed(LENGTHS))
    steps_per_epoch = 1  # there are no epochs: RecallSpec wants lengths in steps

    def __init__(
        self,
        corpus: RecallCorpus,
        model: RecallModel,
        *,
        global_batch_size: int,
        micro_batch_size: int | None,
        device: torch.device,
        tokens_per_forward: int = 16384,
        max_tokens: int | None = None,
        processes: Processes | None = None,
        seed: int = 0,
    ):
        self.corpus, self.data, self.device, self.seed = corpus, corpus.data, device, seed
        self.processes = processes or Processes()
        self.tokens_per_forward, self.max_tokens = tokens_per_forward, max_tokens
        self.own, self.micro_batch_size, self.micro_steps = self.processes.share(global_batch_size, micro_batch_size)
        self.global_batch_size, self.samples_per_step = global_batch_size, global_batch_size * self.data.length
        self.state = sum(layer.state_size(self.data.length) for layer in layers_of(model))
        self.step = 0  # steps trained so far
        self.curve: dict[int, float] = {}  # accuracy by step

    def micro_batches(self, step: int) -> Iterator[RecallBatch]:
        self.step = step + 1
        seed = seed_of("recall", self.data.seed, "train", self.seed, step)
        drawn = draw(self.data, self.global_batch_size, seed)
        first = self.processes.rank * self.own
        for start in range(first, first + self.own, self.micro_batch_size):
            part = drawn[start : min(start + self.micro_batch_size, first + self.own)]
            yield RecallBatch(part.to(self.device), share=len(part) / self.own, first=start)

    def loss(self, model: RecallModel, batch: RecallBatch) -> Tensor:
        return self.row_losses(model, batch).mean() * batch.share

    def rows(self, batch: RecallBatch) -> tuple[Tensor, float]:
        return torch.arange(batch.first, batch.first + len(batch.sequences)), batch.share

    def row_losses(self, model: RecallModel, batch: RecallBatch) -> Tensor:
        logits = model(batch.sequences)
        return F.cross_entropy(logits.mT, batch.sequences.answers, reduction="none").mean(1)

    def evaluate(self, model: RecallModel, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        some = self.corpus.splits["valid"][:CURVE_SEQUENCES]
        found = self._measured(model, some, "valid", poll, on_progress)
        self.curve[self.step] = found["recall"]
        return {"valid_loss": found["nll"], self.primary: found["recall"]}

    def measure(
        self, model: RecallModel, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """Accuracy and mean loss of the queries of a split, with the numbers that make them comparable."""
        if protocol not in LENGTHS:
            raise SetupError(f"--protocol {protocol}: recall is measured by {', '.join(LENGTHS)}")
        sequences = self._of_length(split, LENGTHS[protocol])
        return self._measured(model, sequences, f"{split} {protocol}", poll, on_progress) | self._scored(sequences)

    def from_training(self, records: dict) -> dict[str, dict]:
        """The last accuracy, the mean of all, and the first step at 95 % (no number where it was not reached)."""
        values = list(self.curve.values())
        numbers: dict[str, float | int] = {"recall": values[-1], "area": sum(values) / len(values)}
        learned = [step for step, accuracy in self.curve.items() if accuracy >= LEARNED]
        numbers |= {"steps_to_95": learned[0]} if learned else {}
        some = self.corpus.splits["valid"][:CURVE_SEQUENCES]
        return {"valid": {CURVE: numbers | {"state": self.state} | self._scored(some)}}

    def state_dict(self) -> dict:
        return {"step": self.step, "curve": dict(self.curve)}

    def load_state_dict(self, state: dict) -> None:
        self.step, self.curve = state["step"], dict(state["curve"])

    def _of_length(self, split: str, times: int) -> Sequences:
        sequences = self.corpus.splits[split] if times == 1 else self.corpus.sequences(split, times)
        length = sequences.tokens.shape[1]
        return sequences if self.max_tokens is None else sequences[: max(1, self.max_tokens // length)]

    def _scored(self, sequences: Sequences) -> dict[str, int]:
        counts = {"length": sequences.tokens.shape[1], "pairs": self.data.pairs, "queries": self.data.asked}
        return counts | {"sequences": len(sequences)}

    @torch.inference_mode()
    def _measured(
        self, model: RecallModel, sequences: Sequences, label: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        together = max(1, self.tokens_per_forward // sequences.tokens.shape[1])
        # stays on the device, one host sync at the end: [sum of the losses, right answers]
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        with evaluating(model):
            for start, own in self.divided(range(0, len(sequences), together), poll):
                if own:
                    batch = sequences[start : start + together].to(self.device)
                    logits = model(batch).flatten(0, 1)
                    answers = batch.answers.flatten()
                    totals[0] += F.cross_entropy(logits, answers, reduction="sum")
                    totals[1] += (logits.argmax(-1) == answers).sum()
                on_progress(label, min(start + together, len(sequences)), len(sequences))
        loss, right = self.processes.sum(totals).tolist()
        count = sequences.answers.numel()
        return {"nll": loss / count, "recall": 100 * right / count}
