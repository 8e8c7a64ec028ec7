"""Hugging Face transformers: Fourier attention in its models, and our language models as its models.

import fourierformer.integrations.hugging_face    # once; needs `pip install "fourierformer[transformers]"`

Examples:
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> from fourierformer.integrations import hugging_face
    >>> size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    >>> model = AutoModelForCausalLM.from_config(LlamaConfig(**size, vocab_size=50), attn_implementation="fourier")
    >>> len(hugging_face.learn_radius(model))
    2
"""

from fourierformer.integrations.hugging_face.attention import learn_radius, load_radius, matched_to
from fourierformer.integrations.hugging_face.language_model import FourierFormerConfig, FourierFormerForCausalLM

__all__ = ["FourierFormerConfig", "FourierFormerForCausalLM", "learn_radius", "load_radius", "matched_to"]
