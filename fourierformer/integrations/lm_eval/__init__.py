"""The language-model evaluation harness: our language models as its models, and two tasks that need no network.

python -m fourierformer.integrations.lm_eval run --model fourierformer --model_args run=runs/... --tasks wikitext_words

It is the command of the harness (`pip install lm_eval`), with the model `fourierformer` and the tasks of this folder.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from fourierformer import from_pretrained, load_run
from fourierformer.errors import SetupError, check_range
from fourierformer.tasks.language_objective import scored_windows
from fourierformer.tasks.trained import TrainedLanguageModel

TASKS = Path(__file__).parent


@register_model("fourierformer")
class FourierFormerLM(TemplateLM):
    """A trained language model of this package: run=DIRECTORY, or pretrained=FOLDER that scripts/export.py wrote.

    No text is padded. With stride=1 a text is scored as under the protocol `sliding` (the paper's tables), with an
    eighth of the context as under `overlapping`. The first token of a text is predicted from a line end.
    """

    def __init__(self, run=None, pretrained=None, stride=1, batch_size=16, device=None, max_batch_size=None):
        super().__init__()
        if (run is None) == (pretrained is None):
            raise SetupError("--model_args: run=DIRECTORY of a run, or pretrained=FOLDER of an export")
        load, name = (from_pretrained, pretrained) if run is None else (load_run, run)
        trained = load(str(name), device or "auto")
        if not isinstance(trained, TrainedLanguageModel):
            raise SetupError(f"{name} is no language model: the harness asks for probabilities of words")
        model: Any = trained.model
        self.trained, self.model, self.length = trained, model, model.config.length
        self.stride = int(stride)
        check_range("stride", self.stride, 1, self.length + 1)  # a longer one would leave out tokens
        self.batch = 64 if str(batch_size).startswith("auto") else int(batch_size)  # windows of a long text at a time
        check_range("batch_size", self.batch, 1)

    @property
    def eot_token_id(self) -> int:
        """The line end."""
        return self.trained.encode("")[0]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options) -> list[int]:
        return self.trained.corpus.encode(string)

    @torch.inference_mode()
    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts; of one that begins with a line end, of all after that."""
        return [-self._loss(self.tok_encode(request.args[0])) for request in requests]

    def _loss(self, ids: list[int]) -> float:
        tokens = np.array(ids if ids[:1] == [self.eot_token_id] else [self.eot_token_id, *ids])
        if len(tokens) == 1:
            return 0.0
        if len(tokens) <= self.length:
            one = torch.from_numpy(tokens)[None]
            batches = iter([(one[:, :-1], one[:, 1:])])
        else:
            batches = scored_windows(tokens, self.length, self.stride, self.batch)
        device = self.trained.device
        losses = (self.model(inputs.to(device), targets.to(device)) for inputs, targets in batches)
        return sum(loss.sum(dtype=torch.float64).item() for loss in losses)

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **options) -> list[tuple[float, bool]]:
        """log p of each continuation after its context, and whether all of it was likeliest. Every token is the next
        one after a window, as in `generate` of mechanisms without a state: probabilities depend on the distance to the
        window's end."""
        results = []
        for _, context, rest in requests:
            ids = [*context, *rest]
            windows = [ids[max(0, end - self.length) : end] for end in range(len(context), len(ids))]
            results.append(
                [self._next_token(tuple(window), token) for window, token in zip(windows, rest, strict=True)]
            )
        return [(sum(p for p, _ in found), all(best for _, best in found)) for found in results]

    def _next_token(self, window: tuple[int, ...], token: int) -> tuple[float, bool]:
        log_p = self.model.next_token(torch.tensor([window], device=self.trained.device))[0]
        return log_p[token].item(), log_p.argmax().item() == token

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations, up to the first of the strings in `until`."""
        texts = []
        for request in requests:
            context, options = request.args[0], normalize_gen_kwargs(request.args[1], default_max_gen_toks=64)
            text = self.trained.generate(context, tokens=options["max_gen_toks"], temperature=0)
            text = text[len(self.trained.decode(self.trained.encode(context))) :]
            for stop in filter(None, options["until"]):
                text = text.split(stop)[0]
            texts.append(text)
        return texts
