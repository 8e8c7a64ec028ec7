"""Our language models as models of transformers.

from transformers import AutoModelForCausalLM
import fourierformer.integrations.hugging_face                       # registers model_type "fourierformer"
model = AutoModelForCausalLM.from_pretrained("exported/my_model")    # a folder that scripts/export.py wrote
model.generate(torch.tensor([ids]), max_new_tokens=20)

`fourierformer.from_pretrained` of the same folder turns text into ids and back.
"""

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from fourierformer.errors import SetupError
from fourierformer.models.lm import WordLM
from fourierformer.runs.spec import attention_of, spec_of_values
from fourierformer.tasks.language import Language

UNSUPPORTED = {
    "past_key_values": "has no cache and reads the whole text",
    "position_ids": "counts positions from the end of the text",
    "inputs_embeds": "takes input_ids",
    "output_hidden_states": "returns no hidden states (model.model.hidden(input_ids) returns those of the last layer)",
    "output_attentions": "returns no attention weights",
}


class FourierFormerConfig(PreTrainedConfig):
    """config.json of an exported language model: size of its vocabulary, and config of the run that trained it."""

    model_type = "fourierformer"

    def __init__(self, run: dict | None = None, step: int = 0, vocab_size: int = 0, **options):
        self.run, self.step, self.vocab_size = run, step, vocab_size
        options.setdefault("tie_word_embeddings", False)
        super().__init__(**options)


class FourierFormerForCausalLM(PreTrainedModel, GenerationMixin):
    """A WordLM with the inputs and outputs of transformers. Its logits are the logarithms of the probabilities."""

    config_class = FourierFormerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: FourierFormerConfig):
        super().__init__(config)
        if not isinstance(config.run, dict) or config.run.get("task") != Language.name:
            raise SetupError("config.json holds no run of a language model: write it with scripts/export.py")
        spec = spec_of_values(config.run)
        # on the CPU, also where transformers builds without memory: buffers that are not saved need their values
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            self.model = WordLM(spec.model, config.vocab_size, spec.data.cutoffs or [], attention_of(spec))  # type: ignore[attr-defined,arg-type]
        self._not_saved = dict(_not_saved(self.model))
        self.post_init()

    @property
    def window(self) -> int:
        """The largest number of tokens that the model reads."""
        return self.model.config.length

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None,
        logits_to_keep: int = 0, return_dict: bool = True, **options: object,
    ) -> CausalLMOutput | tuple:  # fmt: skip
        """log p of every next token: (B, N) -> (B, N, V), or of the last `logits_to_keep` positions. With labels (B, N)
        also the mean loss of each label given the tokens before it; -100 is not counted. (In our own training the last
        token is no input, so that positions are one less: model.model(tokens[:, :-1], tokens[:, 1:]).)

        attention_mask (B, N): 0 for padding, which must be on the left; needed for more than one row.
        """
        for name, reason in UNSUPPORTED.items():
            if options.get(name) is not None and options[name] is not False:
                raise ValueError(f"this model {reason}: leave out {name}")
        if input_ids.shape[1] > self.window:
            raise ValueError(f"{input_ids.shape[1]} tokens: this model reads at most {self.window} at a time")
        keep = _kept(input_ids, attention_mask)
        tokens = input_ids.masked_fill(input_ids == self.config.vocab_size, 0)  # padding has no embedding
        hidden = self.model.hidden(tokens, logits_to_keep or None, keep=keep)
        flat = self.model.output.log_probabilities(hidden.flatten(0, 1), self.model.embedding.weight)
        logits = flat.unflatten(0, hidden.shape[:2])
        loss = None
        if labels is not None and keep is not None:  # the first token of a text: only padding is before it
            labels = labels.masked_fill(~keep.roll(1, dims=1), -100)
        if labels is not None:  # with the options by which Trainer scales the loss of accumulated gradients
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options)
        output = CausalLMOutput(loss=loss, logits=logits)
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options) -> dict:
        """Inputs of `generate`: the last window of the text. It drops a mask of ones."""
        ids = input_ids[:, -self.window :]
        kept = torch.ones_like(ids) if attention_mask is None else attention_mask[:, -self.window :]
        return {"input_ids": ids, "attention_mask": kept, "logits_to_keep": 1}

    def _prepare_attention_mask_for_generation(self, inputs_tensor: Tensor, *options) -> Tensor:
        """Called by `generate` where it was given no mask, before it copies rows for beams and samples."""
        _kept(inputs_tensor, None)
        return super()._prepare_attention_mask_for_generation(inputs_tensor, *options)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: `generate` cannot cache a window, because positions count from its end."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.embedding = value

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *arguments, **options) -> nn.Module:
        """The embedding. ValueError for another number of rows, of which the output layer has no weights."""
        if new_num_tokens not in (None, self.config.vocab_size):
            size = f"its vocabulary has {self.config.vocab_size} tokens, got {new_num_tokens}"
            raise ValueError(f"this model cannot be resized, {size}: padding needs no row, pass attention_mask")
        return self.get_input_embeddings()

    def _init_weights(self, module: nn.Module) -> None:
        """Called by transformers when weights are loaded: restore the buffers that are not saved."""
        if module is self.model:
            with torch.no_grad():
                for name, buffer in _not_saved(self.model).items():
                    buffer.copy_(self._not_saved[name])


def _not_saved(model: nn.Module) -> dict[str, Tensor]:
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _kept(tokens: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    """Where tokens (B, N) are text; None: everywhere. Padding on the right would move the positions of a text, which
    count from its end, so rows that may have some are refused."""
    if attention_mask is None:
        if len(tokens) > 1:
            ones = "attention_mask=torch.ones_like(input_ids) for rows of one length"
            raise ValueError(f"{len(tokens)} rows without attention_mask, which may be padded: pass it, or {ones}")
        return None
    keep = attention_mask.bool()
    if keep.all():
        return None
    if (keep[:, :-1] & ~keep[:, 1:]).any():
        raise ValueError("pad on the left: positions of these models count from the end of the text")
    return keep


AutoConfig.register("fourierformer", FourierFormerConfig)
AutoModelForCausalLM.register(FourierFormerConfig, FourierFormerForCausalLM)
