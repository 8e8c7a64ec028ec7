"""Draws sequences of associative recall.

With layout "stream" they follow the law of Zoology's multi-query associative recall (Arora et al., "Zoology", 2023,
section 3 and its published generator): distinct keys from the lower half of the vocabulary, distinct values from the
upper half, pairs first; then each key once more, in slot n with probability proportional to n^(gap_power - 1), slots
drawn without replacement; all other tokens are random. The answer belongs to the position of the query.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourierformer.data.drawn import DrawnRows
from fourierformer.data.recall.spec import RecallData

NOTHING = 0  # the companion of a token that carries no value and no token before it


@dataclass(frozen=True)
class Sequences(DrawnRows):
    """A batch: tokens with their companions, and which positions are scored. Keys that are vectors stand in `vectors`,
    and their tokens are NOTHING."""

    tokens: Tensor  # (B, N) int64
    companions: Tensor  # (B, N) the value of a pair, or the token before
    vectors: Tensor | None  # (B, N, dimension)
    places: Tensor  # (B, Q) positions of the queries
    answers: Tensor  # (B, Q) the right values


def draw(data: RecallData, count: int, seed: int, length: int | None = None) -> Sequences:
    """`count` sequences, the same for the same seed. A longer `length` than the config's moves queries apart."""
    generator = torch.Generator().manual_seed(seed)
    length, half, width = length or data.length, data.vocabulary // 2, data.width
    keys = 1 + _distinct(count, half - 1, data.pairs, generator) if data.keys == "words" else None
    values = half + _distinct(count, data.vocabulary - half, data.pairs, generator)
    asked = torch.arange(data.pairs).expand(count, -1)
    if data.asked < data.pairs:
        asked = _distinct(count, data.pairs, data.asked, generator).sort().values
    slots = (length - width * data.pairs) // width
    odds = torch.arange(1, slots + 1, dtype=torch.float64) ** (data.gap_power - 1)
    slot = torch.multinomial(odds.expand(count, -1), data.asked, generator=generator)
    places = width * (data.pairs + slot)
    answers = values.gather(1, asked)

    tokens = torch.randint(data.vocabulary, (count, length), generator=generator)
    companions = torch.full_like(tokens, NOTHING)
    if keys is None:
        tokens[:] = NOTHING
        companions[:, : data.pairs] = values
        return Sequences(tokens, companions, _vectors(data, asked, places, length, generator), places, answers)
    tokens[:, : width * data.pairs : width] = keys
    tokens.scatter_(1, places, keys.gather(1, asked))
    if data.layout == "stream":
        tokens[:, 1 : 2 * data.pairs : 2] = values
        if data.previous_token:
            companions = F.pad(tokens, (1, 0), value=NOTHING)[:, :-1]
    else:
        companions[:, : data.pairs] = values
    return Sequences(tokens, companions, None, places, answers)


def _distinct(count: int, most: int, chosen: int, generator: torch.Generator) -> Tensor:
    """`chosen` different numbers below `most`, in random order, for each of `count` rows."""
    return torch.rand(count, most, generator=generator).topk(chosen).indices


def _vectors(data: RecallData, asked: Tensor, places: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Keys, random vectors between them, and queries: (B, length, dimension)."""
    count, size = len(asked), (len(asked), data.pairs, data.dimension)
    directions = F.normalize(torch.randn(size, generator=generator), dim=-1)
    if data.twin_cosine is not None:
        first = directions[:, 0 : 2 * (data.pairs // 2) : 2]
        directions[:, 1::2] = _turned(first, math.acos(data.twin_cosine), generator)
    norms = torch.exp(data.norm_spread * torch.randn((*size[:2], 1), generator=generator))
    vectors = F.normalize(torch.randn(count, length, data.dimension, generator=generator), dim=-1)
    vectors[:, : data.pairs] = norms * directions
    index = asked[..., None]
    queries = _turned(directions.take_along_dim(index, 1), math.radians(data.angle), generator)
    return vectors.scatter(1, places[..., None].expand_as(queries), norms.take_along_dim(index, 1) * queries)


def _turned(directions: Tensor, angle: float, generator: torch.Generator) -> Tensor:
    """Unit vectors at exactly this angle, in radians, to the given ones, in random directions."""
    other = torch.randn(directions.shape, generator=generator)
    other = F.normalize(other - (other * directions).sum(-1, keepdim=True) * directions, dim=-1)
    return math.cos(angle) * directions + math.sin(angle) * other


def nearest_is_right(data: RecallData, sequences: Sequences) -> float:
    """The share of queries whose nearest key in angle is the asked one: the accuracy of a perfect search."""
    assert sequences.vectors is not None
    keys = F.normalize(sequences.vectors[:, : data.pairs], dim=-1)
    index = sequences.places[..., None].expand(-1, -1, data.dimension)
    queries = F.normalize(sequences.vectors.gather(1, index), dim=-1)
    found = (queries @ keys.mT).argmax(-1)
    return (sequences.companions.gather(1, found) == sequences.answers).double().mean().item()
