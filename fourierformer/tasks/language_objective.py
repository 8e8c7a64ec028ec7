"""Language modelling, of text or of images: loss, and perplexity under the two protocols of the paper and one between.

segment: the text is cut into 10 streams and each stream into independent segments of `context` tokens; every position
         of a segment is scored, the first ones with hardly any context. Fast: selects checkpoints during training.
sliding: a window of `context` tokens moves by one; of the first window all positions are scored, of every later one
         only the last, which therefore sees the full context. The number of the paper's Table 1.
overlapping: the window moves by an eighth of the context instead, and of every later one the last eighth is scored:
         positions that see seven eighths of the context or more. Nearly the number of `sliding`, context / 8 times as
         fast.

sliding_swapped and the like score a text in which a share of the words is swapped (data/text/swap.py), targets
included: all positions together, and those alone whose target was not swapped.

An image is a sequence and a segment of its own: every pixel value is scored, and no window covers two images.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourierformer.data.text.bpe import token_bytes
from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.sequences import ShuffledSequences, shifted
from fourierformer.data.text.spec import METRIC_OF_UNIT, SWAPPED
from fourierformer.data.text.streams import OrderedStreams, windows
from fourierformer.data.text.swap import swap_words, unknown_word
from fourierformer.errors import SetupError
from fourierformer.models.lm import WordLM
from fourierformer.models.mlm import MaskedLM
from fourierformer.processes import Processes
from fourierformer.training.objective import Objective, OnProgress, Poll, evaluating
from fourierformer.transfer import to_device

SEGMENT_STREAMS = 10  # the authors' eval_batch_size; it decides where segments begin, so it is part of the protocol


@dataclass(frozen=True)
class TextBatch:
    tokens: Tensor  # (B, L) on the device
    targets: Tensor  # (B, L) on the device
    rare: list[Tensor]  # places of rare words among the targets, per cluster; computed on the host, to avoid a sync
    share: float  # of this process's tokens of the step
    first: int = 0  # which row of the global batch its first one is


def perplexity(nll: float) -> float:
    return math.exp(min(nll, 700.0))  # a double overflows at 709.8


class TokenObjective(Objective):
    """What the objectives of tokens share, whichever of them are predicted: the batches' order and their rows."""

    unit = "tokens"
    higher_is_better = False

    def __init__(
        self,
        corpus: Corpus,
        model: WordLM | MaskedLM,
        *,
        global_batch_size: int,
        micro_batch_size: int | None,
        device: torch.device,
        tokens_per_forward: int = 16384,
        max_tokens: int | None = None,
        word_swap: float = 0.0,
        processes: Processes | None = None,
        seed: int = 0,
    ):
        self.corpus, self.device, self.seed, self.processes = corpus, device, seed, processes or Processes()
        self.length, self.rare_places = model.config.length, model.output.rare_places
        self.images = corpus.unit == "pixel"
        self.order: ShuffledSequences | OrderedStreams
        if self.images:
            self.order = ShuffledSequences(corpus.splits["train"], global_batch_size, self.length, seed)
        else:
            self.order = OrderedStreams(corpus.splits["train"], global_batch_size, self.length)
        self.steps_per_epoch = self.order.steps_per_epoch
        _, self.micro_batch_size, self.micro_steps = self.processes.share(global_batch_size, micro_batch_size)
        self.samples_per_step = global_batch_size * self.length
        self.tokens_per_forward = tokens_per_forward  # in an evaluation: bounds its memory
        self.max_tokens = max_tokens  # evaluations use only the first so many tokens (of images at least one)
        self.word_swap = word_swap  # the share of swapped words under sliding_swapped and the like

    def samples_after(self, steps: int) -> int:
        """Tokens in the first `steps` steps, exactly."""
        return self.order.tokens_after(steps)

    def check_evaluate(self) -> None:
        try:
            self.check_measure("valid", "segment")
        except SetupError as error:
            raise SetupError(f"validation during training is not possible: {error}") from None

    def rows(self, batch: Any) -> tuple[Tensor, float]:
        return torch.arange(batch.first, batch.first + len(batch.tokens)), batch.share


class LanguageObjective(TokenObjective):
    def __init__(self, corpus: Corpus, model: WordLM, **options):
        super().__init__(corpus, model, **options)
        self.protocols = ("segment",) if self.images else ("segment", "overlapping", "sliding")
        self.metric = METRIC_OF_UNIT[corpus.unit]
        self.primary = f"valid_{self.metric}"
        self.token_bytes = torch.tensor(token_bytes(corpus.tokenizer)) if corpus.unit == "bpe" else None

    def micro_batches(self, step: int) -> Iterator[TextBatch]:
        tokens, targets = self.order.batch(step, self.processes.rank, self.processes.world)
        first = self.processes.rank * len(tokens)
        for t, y in zip(tokens.split(self.micro_batch_size), targets.split(self.micro_batch_size), strict=True):
            yield self._to_device(t, y, share=len(t) / len(tokens), first=first)
            first += len(t)

    def loss(self, model: WordLM, batch: TextBatch) -> Tensor:
        return model(batch.tokens, batch.targets, batch.rare, mean=True) * batch.share

    def row_losses(self, model: WordLM, batch: TextBatch) -> Tensor:
        return model(batch.tokens, batch.targets, batch.rare).unflatten(0, batch.targets.shape).mean(1)

    def evaluate(self, model: WordLM, poll: Poll, on_progress: OnProgress) -> dict[str, float]:
        result = self.measure(model, "valid", "segment", poll, on_progress)
        return {"valid_loss": result["nll"], self.primary: result[self.metric]}

    def check_measure(self, split: str, protocol: str) -> None:
        batches, _ = self._scored(self.corpus.splits[split], protocol.removesuffix(SWAPPED))
        next(iter(batches))
        if protocol.endswith(SWAPPED) and self.word_swap:
            unknown_word(self.corpus)

    def measure(
        self, model: WordLM, split: str, protocol: str, poll: Poll, on_progress: OnProgress
    ) -> dict[str, float | int]:
        """Mean NLL and perplexity of a split, with the numbers that make it comparable."""
        if protocol.endswith(SWAPPED):
            return self.measure_swapped(
                model, split, protocol.removesuffix(SWAPPED), self.word_swap, poll=poll, on_progress=on_progress
            )
        return self._measure(model, split, protocol, self.corpus.splits[split], None, poll, on_progress)

    def measure_swapped(
        self,
        model: WordLM,
        split: str,
        protocol: str,
        share: float,
        *,
        seed: int = 0,
        poll: Poll,
        on_progress: OnProgress,
    ) -> dict[str, float | int]:
        """The same of a text in which a share of the words is swapped, with the number of these words and the
        perplexity of the positions whose target is not swapped."""
        tokens, words = swap_words(self.corpus, split, share, seed)
        kept = tokens == self.corpus.splits[split]
        numbers = self._measure(model, split, protocol, tokens, kept, poll, on_progress)
        return numbers | {"swapped": int(words[: self.max_tokens].sum())}

    @torch.inference_mode()
    def _measure(
        self,
        model: WordLM,
        split: str,
        protocol: str,
        tokens: np.ndarray,
        kept: np.ndarray | None,
        poll: Poll,
        on_progress: OnProgress,
    ) -> dict[str, float | int]:
        """`kept`: which tokens are those of the original text, (N,); None if all are."""
        batches, positions = self._scored(tokens, protocol)
        # cut like the tokens, so that each batch of targets has a mask
        masks = itertools.repeat(None) if kept is None else (mask for _, mask in self._scored(kept, protocol)[0])
        context = self._context(tokens, protocol)
        # stays on the device, one host sync at the end: [sum of the losses, positions], the same of kept targets, bytes
        totals = torch.zeros(5, dtype=torch.float64, device=self.device)
        done = 0
        with evaluating(model):
            for ((inputs, targets), mask), own in self.divided(zip(batches, masks, strict=False), poll):
                done += targets.numel()
                if own:
                    batch = self._to_device(inputs, targets)
                    losses = model(batch.tokens, batch.targets, batch.rare)
                    totals[0] += losses.sum(dtype=torch.float64)
                    totals[1] += targets.numel()
                    if self.token_bytes is not None:
                        totals[4] += self.token_bytes[targets].sum()
                    if mask is not None:
                        chosen = mask.flatten().nonzero()[:, 0]
                        totals[2] += losses[chosen.to(self.device)].sum(dtype=torch.float64)
                        totals[3] += len(chosen)
                on_progress(f"{split} {protocol}", done, positions)
        total, count, total_kept, count_kept, text_bytes = self.processes.sum(totals).tolist()
        nll = total / count
        numbers = {
            "nll": nll,
            self.metric: perplexity(nll) if self.metric == "ppl" else nll / math.log(2),
            "tokens": int(count),
            "context": context,
            "stride": {"segment": context, "overlapping": self.stride, "sliding": 1}[protocol],
        }
        if text_bytes:  # per byte of text, models of other units compare
            numbers["bpb"] = total / math.log(2) / text_bytes
        if kept is not None:
            nll = total_kept / count_kept if count_kept else math.nan
            numbers |= {"nll_unswapped": nll, f"{self.metric}_unswapped": perplexity(nll)}
        return numbers

    @property
    def stride(self) -> int:
        """How far each overlapping window begins after the one before."""
        return max(1, self.length // 8)

    def _context(self, tokens: np.ndarray, protocol: str) -> int:
        """The longest window of an evaluation: `length`, but of few tokens each stream is one shorter segment."""
        if protocol != "segment" or self.images:
            return self.length
        return min(self.length, max(1, len(tokens[: self.max_tokens]) // SEGMENT_STREAMS - 1))

    def attention_inputs(self, split: str, most: int, together: int) -> tuple[int, Iterator[Tensor]]:
        """The first segments of the text, one after the other; of images what the model reads to predict them."""
        tokens = self.corpus.splits[split]
        count = min(most, len(tokens) // self.length)
        if count == 0:
            raise SetupError(
                f"the {split} split of {self.corpus.name} is shorter than one sequence of {self.length} tokens: choose "
                "another split"
            )
        rows = tokens[: count * self.length].reshape(-1, self.length)
        segments = shifted(rows)[0] if self.images else _tensor(rows)
        return count, (part.to(self.device) for part in segments.split(together))

    def _scored(self, tokens: np.ndarray, protocol: str) -> tuple[Iterator[tuple[Tensor, Tensor]], int]:
        """The batches (inputs, targets) of an evaluation, and the number of all targets."""
        if protocol not in self.protocols:
            raise SetupError(
                f"'{self.corpus.name}' holds images, and each of them is scored whole, without windows: use "
                "evaluation.protocols=[segment], or --protocol segment with scripts/evaluate.py"
            )
        if self.images:
            limit = None if self.max_tokens is None else max(1, self.max_tokens // self.length)
            sequences = tokens.reshape(-1, self.length)[:limit]
            return self._whole(sequences), sequences.size
        tokens = tokens[: self.max_tokens]
        if protocol == "segment":
            return self._segments(tokens), SEGMENT_STREAMS * (len(tokens) // SEGMENT_STREAMS - 1)
        stride = self.stride if protocol == "overlapping" else 1
        together = max(1, self.tokens_per_forward // self.length)
        return scored_windows(tokens, self.length, stride, together), len(tokens) - 1

    def _segments(self, tokens: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of segments. They are independent, so the number of segments in a batch does not change the
        result."""
        streams = OrderedStreams(tokens, SEGMENT_STREAMS, self._context(tokens, "segment"))
        together = max(1, self.tokens_per_forward // (SEGMENT_STREAMS * self.length))
        full = streams.steps_per_epoch - 1  # the last slice may be shorter: alone
        for start in range(0, full, together):
            parts = [streams.batch(step) for step in range(start, min(start + together, full))]
            yield torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        yield streams.batch(full)

    def _whole(self, sequences: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        together = max(1, self.tokens_per_forward // self.length)
        for start in range(0, len(sequences), together):
            yield shifted(sequences[start : start + together])

    def _to_device(self, tokens: Tensor, targets: Tensor, share: float = 1.0, first: int = 0) -> TextBatch:
        rare = self.rare_places(targets.flatten())
        tokens, targets, *rare = to_device(self.device, tokens, targets, *rare)
        return TextBatch(tokens, targets, rare, share, first)


def scored_windows(tokens: np.ndarray, length: int, stride: int, together: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of windows: the first scores its L positions, every later one its last `stride`, and one more the rest of
    the N - 1."""
    inputs, targets = windows(tokens, length)
    yield _tensor(inputs[:1]), _tensor(targets[:1])
    inputs_after, targets_after = inputs[stride::stride], targets[stride::stride, -stride:]
    for start in range(0, len(inputs_after), together):
        chosen = slice(start, start + together)
        yield _tensor(inputs_after[chosen]), _tensor(targets_after[chosen])
    if left := (len(inputs) - 1) % stride:
        yield _tensor(inputs[-1:]), _tensor(targets[-1:, -left:])


def _tensor(tokens: np.ndarray) -> Tensor:
    return torch.from_numpy(tokens.astype(np.int64))
