"""Measure a published causal language model of transformers under the protocols of our own.

Its tokenizer cuts a split into other tokens, whose perplexity does not compare. Hence a perplexity per word is given:
exp(mean loss of a token * tokens / words), with a line end as a word, as in our vocabularies.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from fourierformer.data.text.corpus import Corpus
from fourierformer.data.text.words import line_words
from fourierformer.errors import SetupError, first_line
from fourierformer.tasks import OnProgress
from fourierformer.tasks.language_objective import LanguageObjective, perplexity

TOKENS_PER_FORWARD = 4096  # whose logits over a vocabulary of 50,000 words take 0.8 GB


class AsOurs(nn.Module):
    """A model of transformers with the arguments of WordLM."""

    def __init__(self, model: Any, length: int):
        super().__init__()
        self.model, self.config, self.output = model, SimpleNamespace(length=length), SimpleNamespace()
        self.output.rare_places = lambda targets: []  # it has no adaptive softmax

    def forward(self, tokens: Tensor, targets: Tensor, rare: list[Tensor] | None = None) -> Tensor:
        """-log p(target): tokens (B, N), targets (B, n) for the last n <= N positions -> (B * n,) float32."""
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, -targets.shape[1] :]
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")


def measure_published(
    name: str, corpus: Corpus, split: str, protocol: str, *, context: int | None, limit: int | None,
    device: torch.device, on_progress: OnProgress,
) -> dict[str, float | int]:  # fmt: skip
    """The numbers of a split under a protocol, with `words` and `word_ppl`. limit: score so many tokens at most."""
    if corpus.unit != "word":
        raise SetupError(f"--data {corpus.name}: perplexity per word needs words, as in --data wikitext2")
    try:  # no pickled weights and no code of the repository
        own_code = {"trust_remote_code": False}  # else it asks, and a pipe may answer
        model = AutoModelForCausalLM.from_pretrained(name, use_safetensors=True, **own_code).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(name, **own_code)
    except (ImportError, OSError, ValueError) as error:
        way_out = "name a causal model of the hub (hf:gpt2), or a folder of save_pretrained"
        raise SetupError(f"hf:{name} cannot be loaded ({first_line(error)}): {way_out}") from None
    longest = getattr(model.config, "max_position_embeddings", None)  # where it has learned positions, or was trained
    length = context or longest
    if length is None or (longest is not None and not 1 <= length <= longest):
        most = f"1 to {longest:,}" if longest else "any number of"
        raise SetupError(f"hf:{name} reads {most} tokens: --context {longest or 1024}")
    text = corpus.decode(corpus.splits[split])
    ids = np.array(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:limit])
    words = len(line_words(tokenizer.decode(ids) if limit else text))
    theirs: Any = SimpleNamespace(unit="word", splits={"train": ids, split: ids}, name=corpus.name)
    ours: Any = AsOurs(model, length)
    options = {"global_batch_size": 1, "micro_batch_size": None, "tokens_per_forward": TOKENS_PER_FORWARD}
    objective = LanguageObjective(theirs, ours, **options, device=device)
    numbers = objective.measure(ours, split, protocol, lambda: None, on_progress)
    return numbers | {"words": words, "word_ppl": perplexity(numbers["nll"] * len(ids) / words)}
