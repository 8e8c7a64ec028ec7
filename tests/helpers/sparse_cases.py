"""Every position-based mechanism with small knobs, and its rule once more: who sees whom, written for two numbers."""

import torch

from fourierformer import attention
from fourierformer.attention import Geometry

GRID = (5, 7)
LENGTH = 35  # tokens after the prefix, on the grid and in a sequence


def of_one_square(i: int, j: int, side: int, memory: int) -> bool:
    (row, column), (other_row, other_column) = divmod(i, GRID[1]), divmod(j, GRID[1])
    top, left = row // side * side, column // side * side
    return top - memory <= other_row < top + side + memory and left - memory <= other_column < left + side + memory


def bigbird(i: int, j: int, table: list[list[int]]) -> bool:
    block, other = i // 4, j // 4
    return abs(block - other) <= 1 or block < 1 or other < 1 or other in table[block]


# name -> knobs, and rule(layer, head, i, j) for positions after the prefix; four heads
CASES = {
    "global": ({"tokens": 2}, lambda at, h, i, j: min(i, j) + at.geometry.prefix < 2),
    "band": ({"window": 3}, lambda at, h, i, j: abs(i - j) <= 3),
    "dilated": ({"window": 2, "dilation": 3}, lambda at, h, i, j: i - j in (-6, -3, 0, 3, 6)),
    "block_local": ({"block": 4}, lambda at, h, i, j: i // 4 == j // 4),
    "random": ({"keys_per_token": 5}, lambda at, h, i, j: j in at.keys[h][i].tolist()),
    "star": ({}, lambda at, h, i, j: abs(i - j) <= 1 or min(i, j) + at.geometry.prefix < 1),
    "longformer": (
        {"window": 3, "global_tokens": 2, "dilation": 2, "dilated_heads": 1},
        lambda at, h, i, j: (
            min(i, j) + at.geometry.prefix < 2 or (abs(i - j) <= 3 if h < 3 else i - j in (-6, -4, -2, 0, 2, 4, 6))
        ),
    ),
    "etc": ({"window": 3, "slots": 2}, lambda at, h, i, j: abs(i - j) <= 3),
    "bigbird": (
        {"block": 4, "window": 1, "global_blocks": 1, "random_blocks": 2},
        lambda at, h, i, j: bigbird(i, j, at.random[h].tolist()),
    ),
    "sparse_strided": ({"stride": 6}, lambda at, h, i, j: abs(i - j) < 6 if h < 2 else (i - j) % 6 == 0),
    "sparse_fixed": ({"block": 6, "summary": 2}, lambda at, h, i, j: i // 6 == j // 6 if h < 2 else j % 6 >= 4),
    "axial": ({}, lambda at, h, i, j: i // 7 == j // 7 if h < 2 else i % 7 == j % 7),
    "image_1d": ({"block": 4, "memory": 6}, lambda at, h, i, j: 4 * (i // 4) - 6 <= j < 4 * (i // 4 + 1)),
    "image_2d": ({"tile": 3, "memory": 1}, lambda at, h, i, j: of_one_square(i, j, 3, 1)),
}
SPLIT = {  # what two patterns give where they are not divided over the heads, in the second layer
    "sparse_strided": ("layers", lambda at, h, i, j: (i - j) % 6 == 0),
    "sparse_fixed": ("union", lambda at, h, i, j: i // 6 == j // 6 or j % 6 >= 4),
    "axial": ("union", lambda at, h, i, j: i // 7 == j // 7 or i % 7 == j % 7),
}
NAMES = list(CASES)
CHOICES = [(n, c) for c in (True, False) for n in NAMES if not c or n in attention.available(causal=True)]


def build(name: str, causal: bool, prefix: int = 0, length: int = LENGTH, grid=GRID, **knobs) -> attention.Attention:
    """In float64, with biases; an empty `knobs` takes those of CASES."""
    torch.manual_seed(0)
    needs_grid = attention.mechanism(name).needs_grid
    geometry = Geometry(
        dim=16,
        heads=4,
        length=length + prefix,
        causal=causal,
        bias=True,
        grid=grid if needs_grid else None,
        prefix=prefix,
        layer=1,
    )
    return attention.build(name, geometry, **(knobs or CASES[name][0])).double().eval()


def tokens(n: int, batch: int = 2, seed: int = 1) -> torch.Tensor:
    return 2 * torch.randn(batch, n, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask_of(layer: attention.Attention, n: int) -> torch.Tensor:
    """(heads, n, n) without the learned slots of etc."""
    slots = layer.slots
    positions = torch.arange(n + slots)
    mask = layer.visibility.mask(positions[slots:], positions, n + slots)
    assert mask[..., :slots].all()
    return mask[..., slots:].expand(layer.geometry.heads, -1, -1)
