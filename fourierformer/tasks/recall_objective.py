"""Associative recall: loss and accuracy at the positions of the queries, and the course of both over training."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.attention.base import layers_of
from fourierformer.data.recall.corpus import RecallCorpus
from fourierformer.data.recall.sequences import Sequences, draw
from fourierformer.data.recall.spec import CURVE, LENGTHS
from fourierformer.errors import SetupError
from fourierformer.models.recall import RecallModel
from fourierformer.tasks.drawn_objective import DrawnBatch, DrawnObjective
from fourierformer.training.objective import OnProgress, Poll, evaluating

LEARNED = 95.0  # per cent
CURVE_SEQUENCES = 64  # of valid, at every evaluation during training


class RecallObjective(DrawnObjective):
    unit, metric, primary, higher_is_better = "tokens", "recall", "valid_recall", True
    protocols = tuple(reversed(LENGTHS))

    def __init__(self, corpus: RecallCorpus, model: RecallModel, *, global_batch_size: int, **options):
        super().__init__(corpus, global_batch_size=global_batch_size, **options)
        self.samples_per_step = global_batch_size * self.data.length
        self.state = sum(layer.state_size(self.data.length) for layer in layers_of(model))
        self.step = 0  # steps trained so far
        self.curve: dict[int, float] = {}  # accuracy by step

    def micro_batches(self, step: int) -> Iterator[DrawnBatch]:
        self.step = step + 1
        return super().micro_batches(step)

    def draw(self, seed: int) -> Sequences:
        return draw(self.data, self.global_batch_size, seed)

    def row_losses(self, model: RecallModel, batch: DrawnBatch) -> Tensor:
        logits = model(batch.sequences)
        return F.cross_entropy(logits.mT, batch.sequences.answers, reduction="none").mean(1)

    def evaluate(self, model: RecallModel, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        some = self.corpus.splits["valid"][:CURVE_SEQUENCES]
        found = self._measured(model, some, "valid", poll, on_progress)
        # keep the first evaluation of a step: a second one measures the averaged weights
        self.curve.setdefault(self.step, found["recall"])
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
        return self.limited(sequences, sequences.tokens.shape[1])

    def _scored(self, sequences: Sequences) -> dict[str, int]:
        counts = {"length": sequences.tokens.shape[1], "pairs": self.data.pairs, "queries": self.data.asked}
        return counts | {"sequences": len(sequences)}

    @torch.inference_mode()
    def _measured(
        self, model: RecallModel, sequences: Sequences, label: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        # stays on the device, one host sync at the end: [sum of the losses, right answers]
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        with evaluating(model):
            for batch in self.evaluation_batches(sequences, sequences.tokens.shape[1], label, poll, on_progress):
                logits, answers = model(batch).flatten(0, 1), batch.answers.flatten()
                totals[0] += F.cross_entropy(logits, answers, reduction="sum")
                totals[1] += (logits.argmax(-1) == answers).sum()
        loss, right = self.processes.sum(totals).tolist()
        count = sequences.answers.numel()
        return {"nll": loss / count, "recall": 100 * right / count}
