"""Hugging Face transformers: Fourier attention in its models, and our language models as its models.

import fourierformer.integrations.hugging_face    # once; needs `pip install "fourierformer[transformers]"`
"""

from fourierformer.integrations.hugging_face.attention import learn_radius, matched_to
from fourierformer.integrations.hugging_face.language_model import FourierFormerConfig, FourierFormerForCausalLM

__all__ = ["FourierFormerConfig", "FourierFormerForCausalLM", "learn_radius", "matched_to"]
