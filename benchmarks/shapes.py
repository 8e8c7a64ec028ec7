"""The shapes that benchmarks/kernel.py measures at."""

SHAPES = {  # name: (batch, heads, tokens, width, causal); paper Table 1, authors' DeiT code
    "lm_tiny": (16, 4, 64, 16, True),
    "default": (4, 8, 256, 16, False),
    "default_causal": (4, 8, 256, 16, True),
    "lm_small": (96, 8, 256, 16, True),
    "lm_medium": (56, 8, 384, 32, True),
    "deit_tiny": (256, 3, 197, 64, False),
    "wide_causal": (1, 8, 1024, 64, True),
    "long": (1, 8, 16384, 64, True),
}
