"""What the training loop needs to know of a task; every difference between language and vision stands behind this."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

Poll = Callable[[], None]  # raises Interrupted when a signal asked the run to stop
Watch = Callable[[str, int, int], None]  # (label, done, total): progress of an evaluation


class Task(Protocol):
    primary: str  # the evaluation number that selects the best checkpoint, lower is better: "valid_ppl"

    def tokens_after(self, steps: int) -> int:
        """Tokens (or images) consumed by the first so many steps: throughput and summaries count these."""

    def micro_batches(self, step: int) -> list:
        """The batches of one optimizer step: a pure function of the step, so nothing has to be saved to resume."""

    def loss(self, model, batch) -> Tensor:
        """This batch's share of the step's mean loss: the shares of all micro-batches sum to it."""

    def evaluate(self, model, poll: Poll, watch: Watch) -> dict[str, float]:
        """Numbers of one evaluation during training, `primary` among them."""
