"""Differences between the heads of a trained model, layer by layer: the paper's Table 3.

A_h is the N x N matrix of weights that head h gives the values of one sequence. The quantities per layer:

    head_distance    ||A_h - A_h'||_F              averaged over the pairs of heads and over sequences
    row_distance     ||A_h[i] - A_h'[i]||          averaged over the rows i too
    output_distance  ||A_h v_h - A_h' v_h'||_F     averaged as head_distance
    attended_share   sum_j A_h[i, j]               averaged over heads and rows; less than 1 where eps > 0
    rank             singular values of A_h > 1e-6, averaged over heads and over a few sequences, evenly spaced

The paper only states "average L2 distance between heads"; head_distance is our interpretation. Two rows of weights
>= 0 that sum to at most 1 are at most sqrt(2) apart, so it is at most sqrt(2 N): 22.6 for the 256 tokens of Table 3. A
bidirectional map from r features has rank r at most; a causal one is triangular, so its rank is N unless its diagonal
is near 0.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fourierformer.attention import Attention
from fourierformer.attention.base import layers_of
from fourierformer.errors import SetupError
from fourierformer.files import atomic_write_text, disk_errors, read_json, write_json
from fourierformer.provenance import commit_and_command
from fourierformer.runs.parts import RunObjects, chosen_split, open_run
from fourierformer.training.precision import set_matmul_precision

FILE = "heads.json"  # in the run directory
QUANTITIES = ("head_distance", "row_distance", "output_distance", "attended_share", "rank")
RANK_THRESHOLD = 1e-6  # as in the same group's paper on mixtures of Gaussian keys
RANKED = 16  # sequences with a rank: 2,048 decompositions for 16 layers of 8 heads, 20 ms each at 256 tokens
MAP_NUMBERS = 2**23  # numbers in the maps of one forward pass: a few tensors of 32 MiB


def pair_squares(x: Tensor) -> Tensor:
    """||x_h[i] - x_h'[i]||^2 for all pairs of heads h < h' and all rows i: (B, H, N, M) -> (B, H (H - 1) / 2, N)."""
    rows = [(x[:, h + 1 :] - x[:, h, None]).square().sum(-1) for h in range(x.shape[1] - 1)]
    return torch.cat(rows, dim=1).double()


def distances(maps: Tensor, outputs: Tensor) -> dict[str, Tensor]:
    """Distances between heads per sequence: (B, H, N, M) and (B, H, N, K) -> three times (B,)."""
    squares = pair_squares(maps)
    return {
        "head_distance": squares.sum(-1).sqrt().mean(-1),
        "row_distance": squares.sqrt().mean((-2, -1)),
        "output_distance": pair_squares(outputs).sum(-1).sqrt().mean(-1),
    }


def effective_rank(maps: Tensor) -> Tensor:
    """The rank per sequence, as a mean over the heads: (B, H, N, M) -> (B,)."""
    return (torch.linalg.svdvals(maps) > RANK_THRESHOLD).sum(-1).double().mean(-1)


class LayerSums:
    """Sums of the quantities of one layer over all sequences."""

    def __init__(self, rank_every: int):
        self.rank_every = rank_every
        self.sums = dict.fromkeys(QUANTITIES, 0.0)
        self.sequences = self.ranked = 0

    def before_forward(self, layer: Attention, arguments: tuple[Tensor, ...]) -> None:
        """A forward pre-hook: add the quantities for q, k, v of this forward pass."""
        q, k, v = layer.arguments(arguments[0])
        maps = layer.maps(q, k)
        if not torch.isfinite(maps).all():
            raise SetupError("its attention maps are not finite: it diverged, or its weights are damaged")
        self._add(distances(maps, maps @ v.to(maps.dtype)))
        self._add({"attended_share": maps.sum(-1).double().mean((-2, -1))})
        # sequence 0, rank_every, 2 rank_every, ... of all batches; float64, since float32 errors approach 1e-6
        chosen = slice(-self.sequences % self.rank_every, None, self.rank_every)
        if len(q[chosen]):
            self._add({"rank": effective_rank(layer.maps(q[chosen].double(), k[chosen].double()))})
        self.sequences += len(q)
        self.ranked += len(q[chosen])

    def _add(self, per_sequence: dict[str, Tensor]) -> None:
        for quantity, values in per_sequence.items():
            self.sums[quantity] += values.sum().item()

    def means(self) -> dict[str, float]:
        counts = dict.fromkeys(QUANTITIES, self.sequences) | {"rank": self.ranked}
        return {quantity: self.sums[quantity] / counts[quantity] for quantity in QUANTITIES}


def measure_heads(
    model: nn.Module, forward: Callable[[Tensor], object], batches: Iterable[Tensor], rank_every: int = 1
) -> list[LayerSums]:
    """Call `forward` on every batch and measure each attention layer of the model."""
    layers = layers_of(model)
    for layer in layers:
        if layer.geometry.heads < 2:
            raise SetupError("a single head per layer cannot be compared: measure a run with model.heads > 1")
    all_sums = [LayerSums(rank_every) for _ in layers]
    run_with_hooks(layers, [sums.before_forward for sums in all_sums], forward, batches)
    return all_sums


def run_with_hooks(
    layers: list[Attention], hooks: list[Callable], forward: Callable[[Tensor], object], batches
) -> None:
    """Call `forward` on every batch, and before each layer its forward pre-hook. SetupError without sequences."""
    seen = 0
    with contextlib.ExitStack() as stack, torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        for layer, hook in zip(layers, hooks, strict=True):
            stack.enter_context(layer.register_forward_pre_hook(hook))
        for batch in batches:
            forward(batch)
            seen += len(batch)
    if not seen:
        raise SetupError("nothing to measure: no image of the split could be read. Copy the data again")


def measure_run(run: Path, split: str | None = None, sequences: int = 1000) -> tuple[str, dict]:
    """Measure the best checkpoint of a run: (split, numbers), the arguments of `save`."""
    parts, step = open_run(run)
    split, planned, forward, batches = attention_inputs(parts, run, split, sequences)
    layers = measure_heads(parts.model, forward, batches, rank_every=math.ceil(planned / RANKED))
    geometry = parts.attention.geometry
    origin = {"data": parts.corpus.name, "step": step, "heads": geometry.heads, "length": geometry.length}
    return split, origin | _over_layers(layers)


def attention_inputs(
    parts: RunObjects, run: Path, split: str | None, sequences: int
) -> tuple[str, int, Callable[[Tensor], object], Iterable[Tensor]]:
    """(split, number of sequences, function of a batch, batches) to measure the layers of a run."""
    set_matmul_precision("fp32")  # also after training in lower precision: differences of maps may be small
    split = chosen_split(parts, run, split)
    length, heads = parts.attention.geometry.length, parts.attention.geometry.heads
    together = max(1, MAP_NUMBERS // (heads * length**2))
    planned, batches = parts.objective.attention_inputs(split, sequences, together)
    # a language model's own forward would score the tokens too
    return split, planned, getattr(parts.model, "hidden", parts.model), batches


def _over_layers(layers: list[LayerSums]) -> dict:
    """The numbers of each layer, and their mean and standard deviation (n - 1; a single layer has none)."""
    means = [layer.means() for layer in layers]
    columns = {quantity: [layer[quantity] for layer in means] for quantity in QUANTITIES}
    return {
        "sequences": layers[0].sequences,
        "ranked_sequences": layers[0].ranked,
        "layers": means,
        "mean": {quantity: float(np.mean(column)) for quantity, column in columns.items()},
        "sd": {q: float(np.std(column, ddof=1)) if len(layers) > 1 else None for q, column in columns.items()},
    }


def save(run: Path, split: str, numbers: dict) -> None:
    """Write the numbers of a split to heads.json of the run, with commit and command; other splits are kept."""
    content = {"schema": 1, "splits": saved(run) | {split: numbers | {"origin": commit_and_command()}}}
    with disk_errors(run / FILE):
        write_json(run / FILE, content)


def saved(run: Path) -> dict[str, dict]:
    """The numbers in heads.json by split; empty before the first measurement."""
    splits = (read_json(run / FILE) or {}).get("splits")
    return splits if isinstance(splits, dict) else {}


def write_numbers(path: Path, value: object) -> None:
    with disk_errors(path):
        atomic_write_text(path, json.dumps(value, indent=2) + "\n")
