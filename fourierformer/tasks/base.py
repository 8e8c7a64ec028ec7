"""What the training loop needs to know of a task; every difference between language and vision stands behind this."""

from collections.abc import Callable, Iterable
from typing import Protocol

from torch import Tensor

Poll = Callable[[], None]  # raises Interrupted when a signal asked the run to stop
Watch = Callable[[str, int, int], None]  # (label, done, total): progress of an evaluation


class Task(Protocol):
    """Several processes have a task each, for their own share of every global batch and of every evaluation."""

    metric: str  # what the task is judged by: "ppl", "top1"
    primary: str  # the evaluation number that selects the best checkpoint: "valid_ppl"
    higher_is_better: bool
    unit: str  # what is counted: "tokens", "images"
    samples_per_step: int  # of the global batch
    steps_per_epoch: int
    micro_steps: int  # micro-batches of one step on one process

    def samples_after(self, steps: int) -> int:
        """Tokens or images consumed by the first so many steps: throughput and summaries count these."""

    def micro_batches(self, step: int) -> Iterable:
        """The batches of one optimizer step: a pure function of the step, so nothing has to be saved to resume."""

    def loss(self, model, batch) -> Tensor:
        """This batch's share of the mean loss of this process's part of the step: the shares sum to that mean."""

    def evaluate(self, model, poll: Poll, watch: Watch) -> dict[str, float]:
        """Numbers of one evaluation during training, `primary` among them; the same on every process. Calls `poll`
        equally often on every process."""

    def notes(self) -> list[str]:
        """What a reader of the results must know: unreadable images, say."""

    def close(self) -> None:
        """Lets go of loader processes."""
