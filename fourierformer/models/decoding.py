"""Decoders, which predict the next token of a text: from the whole window, or from a state of constant size."""

import torch
from torch import Tensor

from fourierformer.attention.base import State
from fourierformer.models.lm import WordLM

COLDEST = 1e-30  # temperatures below it count as 0: float32 may not hold log p divided by them


class WindowDecoder:
    """Predict the next token by a forward pass over the last window: for any attention."""

    def __init__(self, model: WordLM):
        self.model = model
        self.name = f"without a cache: each new token recomputes the last {model.config.length} tokens"

    def next_token(self, tokens: list[int]) -> Tensor:
        """log p of every word as the next one: (V,)."""
        window = torch.tensor([tokens[-self.model.config.length :]], device=self.model.embedding.weight.device)
        return self.model.next_token(window)[0]


class StateDecoder:
    """Predict the next token from a state, which reads each token once. A window ends at its last position, as in
    training; the next one begins with the newer half of the old one: at most two steps per token on average."""

    def __init__(self, model: WordLM):
        self.model = model
        self.states = self._start()
        self.position = 0  # of the next token in its window
        self.read = 0  # tokens so far
        self.log_p: Tensor | None = None
        numbers = sum(tensor.numel() for state in self.states for tensor in state)
        self.name = f"with a state of {numbers:,} numbers"

    def next_token(self, tokens: list[int]) -> Tensor:
        """log p of every word as the next one: (V,). `tokens` extend those of the previous call by at least one."""
        length = self.model.config.length
        begin = self.read or max(0, len(tokens) - length)  # only the last window of a longer text is read
        for index in range(begin, len(tokens)):
            if self.position == length:
                self.states, self.position = self._start(), 0
                for token in tokens[index - length // 2 : index]:
                    self._feed(token)
            self._feed(tokens[index])
        self.read = len(tokens)
        assert self.log_p is not None  # at least one token was new
        return self.log_p

    def _start(self) -> list[State]:
        states = self.model.start(1)
        assert states is not None  # else `decoder` returns a WindowDecoder
        return states

    def _feed(self, token: int) -> None:
        newest = torch.tensor([token], device=self.model.embedding.weight.device)
        log_p, self.states = self.model.step(newest, self.position, self.states)
        self.log_p, self.position = log_p[0], self.position + 1


def decoder(model: WordLM) -> WindowDecoder | StateDecoder:
    return WindowDecoder(model) if model.start(1) is None else StateDecoder(model)


def pick(log_p: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """The next token: the likeliest at temperature 0, else drawn from the `top_k` likeliest (0: from all)."""
    if temperature < COLDEST:
        return int(log_p.argmax())
    values, ids = log_p.topk(min(top_k, len(log_p)) if top_k > 0 else len(log_p))
    return int(ids[torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)])
