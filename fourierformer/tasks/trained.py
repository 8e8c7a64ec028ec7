"""Trained models ready to use, without the data that they were trained on: one class for each kind of task.

`fourierformer.load_run` and `fourierformer.from_pretrained` return them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fourierformer.config import RunSpec
from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.pairs import BEGIN, END, PAD, decode, encode
from fourierformer.errors import SetupError, check_range
from fourierformer.models.decoding import decoder, pick
from fourierformer.models.mlm import MaskedLM
from fourierformer.models.seq2seq import EncoderDecoder, greedy

if TYPE_CHECKING:
    from PIL.Image import Image

MASK = "[mask]"


@dataclass(repr=False)
class TrainedModel:
    """A trained model in evaluation mode."""

    model: nn.Module
    spec: RunSpec  # how it was trained
    corpus: Any  # vocabulary or names of classes; splits only where the data was loaded
    step: int  # of the checkpoint that its weights are from

    def __repr__(self) -> str:
        network = f"{self.spec.model.name} with {self.spec.attention.name} attention"
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"{type(self).__name__}({network}, {parameters:,} parameters, {self.spec.data.name}, step {self.step:,})"

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> TrainedModel:
        self.model.to(device)
        return self


class TrainedLanguageModel(TrainedModel):
    """A language model that goes on with a text."""

    corpus: Corpus

    def encode(self, text: str) -> list[int]:
        """Ids of a text. An empty one is the beginning of a line, which follows a line end: <eos> among words, or
        byte 10."""
        if not isinstance(text, str):
            raise TypeError(
                f"the text must be a string, got {type(text).__name__}: several texts are encoded one by one"
            )
        return self.corpus.encode(text) or self.corpus.encode("\n")

    def decode(self, ids: Sequence[int]) -> str:
        return self.corpus.decode(self._checked(ids))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        ids, vocabulary = [int(number) for number in ids], self.corpus.vocab_size
        if any(not 0 <= number < vocabulary for number in ids):
            raise SetupError(f"ids must be numbers from 0 to {vocabulary - 1}: `encode` makes them of a text")
        return ids

    @torch.inference_mode()
    def generate(
        self, prompt: str = "", *, tokens: int = 60, temperature: float = 0.8, top_k: int = 50, seed: int = 0
    ) -> str:
        """The prompt and how the model goes on, `tokens` more. temperature 0: always the likeliest token; top_k 0: any
        token, else one of so many likeliest."""
        return self.decode(self.continued(self.encode(prompt), tokens, temperature, top_k, seed))

    @torch.inference_mode()
    def continued(
        self, ids: Sequence[int], tokens: int, temperature: float = 0.0, top_k: int = 0, seed: int = 0
    ) -> list[int]:
        """The ids, and `tokens` more."""
        if self.corpus.sequence is not None:
            raise SetupError(
                f"'{self.corpus.name}' holds images: the model reads one from its first value on, not the end of a text"
            )
        for name, number in {"tokens": tokens, "temperature": temperature, "top_k": top_k}.items():
            check_range(name, number, 0)
        check_range("seed", seed, -(2**63), 2**63)
        ids = self._checked(ids)
        if not ids:
            raise SetupError("there are no ids to continue: `encode` makes them of a text")
        generator, decode = torch.Generator().manual_seed(seed), decoder(self.model)  # type: ignore[arg-type]
        for _ in range(tokens):
            ids.append(pick(decode.next_token(ids).cpu(), temperature, top_k, generator))
        return ids

    @property
    def decoding(self) -> str:
        """How `generate` decodes: "without a cache: each new token recomputes the last 64 tokens"."""
        return decoder(self.model).name  # type: ignore[arg-type]


class TrainedMaskedModel(TrainedModel):
    """A masked language model that fills gaps from both sides."""

    corpus: Corpus

    @torch.inference_mode()
    def fill(self, text: str) -> str:
        """The text with the likeliest word in place of every [mask]."""
        assert isinstance(self.model, MaskedLM)
        *before, rest = text.split(MASK)
        if not before:
            raise SetupError(f"the text has no gap: write {MASK} where the model is to put a word")
        if self.corpus.unit != "byte":  # a blank before a gap is no token of its own, but part of the word in the gap
            before = [part.removesuffix(" ") for part in before]
        parts = [self.corpus.encode(part) for part in (*before, rest)]
        tokens = list(parts[0])
        gaps = []
        for part in parts[1:]:
            gaps.append(len(tokens))
            tokens += [self.corpus.vocab_size, *part]
        length = self.model.config.length
        if len(tokens) > length:
            raise SetupError(f"the text has {len(tokens)} tokens: the model reads at most {length}")
        ids, positions = (torch.tensor(numbers, device=self.device) for numbers in (tokens, gaps))
        for gap, word in zip(gaps, self.model.log_probabilities(ids[None], positions).argmax(-1).tolist(), strict=True):
            tokens[gap] = word
        return self.corpus.decode(tokens)


class TrainedEncoderDecoder(TrainedModel):
    """An encoder-decoder that answers a text with a text."""

    @torch.inference_mode()
    def answer(self, text: str) -> str:
        """The model's answer to a text, decoded greedily."""
        assert isinstance(self.model, EncoderDecoder)
        ids, longest = encode(text), self.model.config.source_length
        if len(ids) > longest:
            raise SetupError(f"the text has {len(ids) - 1} characters: at most {longest - 1}")
        source = torch.tensor([ids], device=self.device)
        return decode(greedy(self.model, source, source != PAD, begin=BEGIN, end=END, padding=PAD)[0])


class TrainedClassifier(TrainedModel):
    """An image classifier."""

    @property
    def classes(self) -> list[str]:
        return self.corpus.classes

    @cached_property
    def transform(self):
        """The transform of evaluation, RGB image of PIL -> (3, size, size): resized, cropped, normalised as in
        training."""
        from fourierformer.data.images.corpus import eval_transform

        spec: Any = self.spec
        return eval_transform(spec.data, spec.augment, spec.model.image_size)

    @torch.inference_mode()
    def classify(self, image: Image, *, top: int = 5) -> list[tuple[str, float]]:
        """The likeliest classes of an image with their probabilities, the likeliest first."""
        from PIL.Image import Image as PILImage

        from fourierformer.data.images.sets import to_rgb

        if not isinstance(image, PILImage):
            raise TypeError(f"image must be a PIL image, got {type(image).__name__}: PIL.Image.open(path) reads one")
        logits: Tensor = self.model(self.transform(to_rgb(image))[None].to(self.device))
        probabilities, numbers = logits[0].float().softmax(-1).topk(min(top, logits.shape[-1]))
        return [(self.classes[n], p) for n, p in zip(numbers.tolist(), probabilities.tolist(), strict=True)]
