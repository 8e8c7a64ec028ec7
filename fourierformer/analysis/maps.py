"""Mean attention maps of a trained run, also by the offset between two patches of an image."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fourierformer.analysis.heads import attention_inputs, run_with_hooks
from fourierformer.attention import Attention, Geometry
from fourierformer.attention.base import layers_of
from fourierformer.errors import SetupError
from fourierformer.models.lm import TextModel
from fourierformer.runs.parts import open_run
from fourierformer.tasks.trained import TrainedLanguageModel, TrainedModel


@dataclass(frozen=True)
class MeanMaps:
    """The weight of each key for each query, averaged over the sequences of a split."""

    maps: Tensor  # (layers, heads, N, N), float32
    split: str
    sequences: int
    step: int
    geometry: Geometry


class MapSum:
    """The sum of one layer's maps over all sequences."""

    def __init__(self):
        self.total: Tensor | float = 0.0
        self.sequences = 0

    def before_forward(self, layer: Attention, arguments: tuple[Tensor, ...]) -> None:
        """A forward pre-hook: add the maps of this forward pass."""
        q, k, _ = layer.arguments(arguments[0])
        self.total = self.total + layer.maps(q, k).double().sum(0)
        self.sequences += len(q)

    def mean(self) -> Tensor:
        assert isinstance(self.total, Tensor)  # `run_with_hooks` refuses empty input
        return (self.total / self.sequences).float().cpu()


def mean_maps(run: Path, split: str | None = None, sequences: int = 100) -> MeanMaps:
    """Mean maps of the best checkpoint of a run. SetupError where the mechanism has no maps."""
    parts, step = open_run(run)
    split, _, forward, batches = attention_inputs(parts, run, split, sequences)
    layers = layers_of(parts.model)
    sums = [MapSum() for _ in layers]
    run_with_hooks(layers, [one.before_forward for one in sums], forward, batches)
    maps = torch.stack([one.mean() for one in sums])
    return MeanMaps(maps, split, sums[0].sequences, step, parts.attention.geometry)


def text_maps(trained: TrainedModel, text: str) -> tuple[list[str], Tensor]:
    """The tokens of a text, and their maps (layers, heads, N, N) in a trained language model."""
    if not isinstance(trained, TrainedLanguageModel):
        needed = "maps of a text are of models that predict its next token"
        raise SetupError(f"{needed}, and one of task={trained.spec.task} does not")
    ids, layers = trained.encode(text), layers_of(trained.model)
    longest = layers[0].geometry.length
    if len(ids) > longest:
        raise SetupError(f"the text has {len(ids):,} tokens, the model reads {longest:,}: choose a shorter one")
    sums = [MapSum() for _ in layers]
    assert isinstance(trained.model, TextModel)
    batch = torch.tensor([ids], device=trained.device)
    run_with_hooks(layers, [one.before_forward for one in sums], trained.model.hidden, [batch])
    return [trained.decode([number]) for number in ids], torch.stack([one.mean() for one in sums])


def by_offset(maps: Tensor, grid: tuple[int, int], prefix: int) -> Tensor:
    """Maps (..., N, N) of patches, row by row after the prefix -> (..., 2 rows - 1, 2 columns - 1): the mean weight by
    the offset of the key from the query in rows and columns; the centre is the weight of a patch for itself.

    As in the figures of the AFT paper (Zhai et al. 2021), which average over queries and images.
    """
    rows, columns = grid
    height, width = 2 * rows - 1, 2 * columns - 1
    row, column = torch.arange(rows * columns) // columns, torch.arange(rows * columns) % columns
    down, right = row - row[:, None] + rows - 1, column - column[:, None] + columns - 1
    offset = (down * width + right).flatten()
    weights = maps[..., prefix:, prefix:].flatten(-2)
    sums = weights.new_zeros(*weights.shape[:-1], height * width).index_add(-1, offset, weights)
    return (sums / torch.bincount(offset, minlength=height * width)).unflatten(-1, (height, width))
