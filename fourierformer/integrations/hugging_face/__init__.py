"""Hugging Face transformers: Fourier attention in its models.

import fourierformer.integrations.hugging_face    # once; needs `pip install "fourierformer[transformers]"`
"""

from fourierformer.integrations.hugging_face.attention import learn_radius, matched_to

__all__ = ["learn_radius", "matched_to"]
