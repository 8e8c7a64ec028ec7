"""Pictures of visible keys: patterns of sparse attentions, and mean maps of trained models."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fourierformer.analysis.maps import MeanMaps, by_offset
from fourierformer.attention import Geometry, available, build, mechanism
from fourierformer.attention.mechanisms.sparse import SparseAttention
from fourierformer.errors import SetupError
from fourierformer.report.picture import INK, PAGE, Picture, series_colour

NAME = "patterns"
TITLE = "Who sees whom: queries downwards, keys to the right. Dark: the past, all that a causal model sees"
ACROSS = 7  # panels of the gallery in a row
TOKENS, SIDE = 64, 8  # of the gallery: an image of 8 x 8 patches
FUTURE = 0.4  # the shade of what a causal model does not see, beside 1
MOST = 4  # heads that are drawn where all are different
GALLERY: dict[str, dict[str, object]] = {  # with knobs that suit so few tokens
    "global": {"tokens": 3},
    "band": {"window": 6},
    "dilated": {"window": 5, "dilation": 3},
    "block_local": {"block": 12},
    "random": {"keys_per_token": 6},
    "star": {},
    "longformer": {"window": 4, "global_tokens": 2, "dilation": 3},
    "etc": {"window": 6, "slots": 4},
    "bigbird": {"block": 4},
    "sparse_strided": {"stride": 8},
    "sparse_fixed": {"block": 8, "summary": 2},
    "axial": {},
    "image_1d": {"block": 8, "memory": 8},
    "image_2d": {"tile": 4, "memory": 1},
    "bpt": {"step": 2},
}
HOW_SHADED = "A row per query, up to its largest weight; paler as far as its weights sum to less than 1"


@dataclass(frozen=True)
class MapPanel:
    title: str
    values: Tensor  # (queries, keys) or (rows, columns), from 0 to 1
    star: tuple[int, int] | None = None  # row and column of the query on an image
    side: str = ""  # stands to the left


def layer_of(
    name: str, causal: bool, tokens: int, grid: tuple[int, int] | None, knobs: Mapping[str, object]
) -> SparseAttention:
    """SetupError for an attention that sees all keys, and where the mechanism refuses."""
    drawable = [n for n in available() if issubclass(mechanism(n), SparseAttention)]
    if not issubclass(mechanism(name), SparseAttention):
        raise SetupError(
            f"attention '{name}' has no pattern of positions to draw. These have: {', '.join(drawable)}. "
            "A run directory in place of the name shows what was learned"
        )
    layer = build(name, Geometry(dim=8, heads=4, length=tokens, causal=causal, grid=grid), **knobs)
    assert isinstance(layer, SparseAttention)
    return layer


def head_patterns(layer: SparseAttention, tokens: int) -> list[tuple[str, Tensor]]:
    """The different patterns of a mechanism, with the names of their heads."""
    shares = layer.shares(tokens)
    if len(shares) == 1:
        return [("all heads", shares[0])]
    starts = [h for h in range(len(shares)) if h == 0 or not torch.equal(shares[h], shares[h - 1])]
    ends = [*(start - 1 for start in starts[1:]), len(shares) - 1]
    return [
        (f"head {a + 1}" if a == b else f"heads {a + 1}-{b + 1}", shares[a]) for a, b in zip(starts, ends, strict=True)
    ]


def pattern_panels(layer: SparseAttention, tokens: int, title: str) -> list[MapPanel]:
    """The pattern of every kind of head of a mechanism; on a grid also the keys of the middle patch."""
    patterns = head_patterns(layer, tokens)[:MOST]
    panels = [MapPanel(f"{title}, {heads}" if len(patterns) > 1 else title, _shaded(p)) for heads, p in patterns]
    if layer.geometry.grid:
        panels += [patch_panel(f"one patch, {heads}", p, layer.geometry.grid) for heads, p in patterns]
    return panels


def patch_panel(title: str, shares: Tensor, grid: tuple[int, int]) -> MapPanel:
    """The patches that the middle patch sees."""
    row, column = grid[0] // 2, grid[1] // 2
    return MapPanel(title, _shaded(shares)[row * grid[1] + column].reshape(grid), (row, column))


def _shaded(shares: Tensor) -> Tensor:
    """The shade of a mean of several tokens, which fades slower than 1 / tokens: a mean of 16 has 0.5, not 0.06."""
    return shares**0.25


def panel_picture(
    rows: list[list[MapPanel]], name: str, title: str, description: str = "", inches: float = 1.9
) -> Picture:
    """Draw all panels on one scale of colours, from 0 to 1."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(inches * columns, (inches + 0.2) * len(rows) + 0.3), layout="constrained")
    figure.suptitle(title, fontsize=9, color=INK.fixed)
    shades = LinearSegmentedColormap.from_list("weights", ["#ffffff", series_colour(0).fixed])
    grid = figure.add_gridspec(len(rows), columns)
    for i, row in enumerate(rows):
        for j, panel in enumerate(row):
            axes = figure.add_subplot(grid[i, j])
            axes.imshow(panel.values.numpy(), cmap=shades, vmin=0, vmax=1, interpolation="none", aspect="equal")
            axes.set_title(panel.title, fontsize=7, color=INK.fixed, parse_math=False)
            axes.set(xticks=[], yticks=[])
            axes.set_ylabel(panel.side, fontsize=7, color=INK.fixed, parse_math=False)
            axes.spines[:].set(color=INK.fixed, alpha=0.3, linewidth=0.6)
            if panel.star:
                axes.plot(*panel.star[::-1], marker="*", color=series_colour(1).fixed, markersize=7, linestyle="none")
    return Picture(figure, name, title, [], description=description)


def pattern_picture(name: str, tokens: int, grid: tuple[int, int] | None, knobs: Mapping[str, object]) -> Picture:
    """Draw one mechanism, bidirectional above and causal below, where it can be both."""
    rows = []
    refusals = []
    for causal, word in ((False, "bidirectional"), (True, "causal")):
        try:
            layer = layer_of(name, causal, tokens, grid, knobs)
        except SetupError as error:
            refusals.append(error)
            continue
        rows.append(pattern_panels(layer, tokens, word))
    if not rows:
        raise refusals[0]
    chosen = ", ".join(f"{key} = {value}" for key, value in knobs.items())
    return panel_picture(rows, f"attention_{name}", f"{name}{': ' if chosen else ''}{chosen}, {tokens} tokens")


def gallery_panels() -> list[MapPanel]:
    """Draw every mechanism with a pattern, bidirectional; the causal part is darker."""
    panels = []
    for name, knobs in GALLERY.items():
        layer = layer_of(name, False, TOKENS, (SIDE, SIDE) if mechanism(name).needs_grid else None, knobs)
        patterns = head_patterns(layer, TOKENS)
        for heads, shares in patterns[: 1 if name in ("random", "bigbird") else MOST]:
            extra = shares.shape[1] - TOKENS
            past = torch.ones_like(shares).tril(extra).bool()
            title = name if len(patterns) == 1 else f"{name}, {heads}"
            panels.append(MapPanel(title, torch.where(past, _shaded(shares), FUTURE * _shaded(shares))))
        if layer.geometry.grid:
            panels.append(patch_panel(f"{name}, one patch", patterns[0][1], layer.geometry.grid))
    return panels


def map_pictures(mean: MeanMaps, layers: list[int], title: str) -> list[Picture]:
    """Mean maps, a row of panels for each layer and a column for each head; of images also by the offset of the key."""
    caption = f"{title}: mean of {mean.sequences:,} sequences of the {mean.split} split, step {mean.step:,}"
    rows = [[_map_panel(f"layer {i}, head {h + 1}", m) for h, m in enumerate(mean.maps[i])] for i in layers]
    pictures = [panel_picture(rows, "attention_maps", f"{caption}. {HOW_SHADED}")]
    geometry = mean.geometry
    if geometry.grid and not geometry.causal:
        offsets = by_offset(mean.maps, geometry.grid, geometry.prefix)
        rows = [
            [MapPanel(f"layer {i}, head {h + 1}", m / _largest(m)) for h, m in enumerate(offsets[i])] for i in layers
        ]
        text = f"{caption}. By offset from the query in the middle"
        pictures.append(panel_picture(rows, "attention_by_offset", text))
    return pictures


def compared_maps_picture(maps: dict[str, MeanMaps], layers: list[int], name: str, title: str) -> Picture:
    """Draw these layers of each model, a column for each head: maps of the same sequences."""
    one = next(iter(maps.values()))
    rows = []
    for layer in layers:
        for label, mean in maps.items():
            rows.append([_map_panel(f"head {h + 1}", m) for h, m in enumerate(mean.maps[layer])])
            rows[-1][0] = replace(rows[-1][0], side=f"{label}\nlayer {layer}")
    number = "The same sequence" if one.sequences == 1 else f"The mean of the same {one.sequences:,} sequences"
    caption = (
        f"{number} of the {one.split} split in every panel, {one.maps.shape[-1]} tokens: queries downwards, "
        f"keys to the right. {HOW_SHADED}."
    )
    inches = min(1.9, PAGE / max(map(len, rows)))
    return replace(panel_picture(rows, name, "", inches=inches), title=title, caption=caption, wide=True)


def _map_panel(title: str, weights: Tensor) -> MapPanel:
    """The map of a head. A query is white if eps dominates the denominator: it attends to nothing, whatever the shape
    of its weights."""
    sizes = weights.abs()  # some mechanisms have weights below 0
    values = sizes / _largest(sizes, -1) * sizes.sum(-1, keepdim=True).clamp(max=1)
    return MapPanel(title + _sum_text(float(weights.sum(-1).mean())), values)


def _largest(weights: Tensor, *axes: int) -> Tensor:
    """The largest weight, or 1 where all weights are 0: a divisor."""
    return weights.amax(axes, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def _sum_text(mean: float) -> str:
    if 0.995 < mean < 1.005:
        return ""
    return f", sum {mean:.2f}" if abs(mean) >= 0.01 or mean == 0 else f", sum {mean:.0e}".replace("e-0", "e-")


def fingerprint(panels: list[MapPanel]) -> str:
    """The hash of all drawn numbers. The committed SVG contains it, so that a test detects a stale one."""
    text = "".join(f"{panel.title} {(100 * panel.values).round().int().tolist()}" for panel in panels)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save_gallery(folder: Path) -> list[Path]:
    """Write patterns.svg and patterns.png."""
    folder.mkdir(parents=True, exist_ok=True)
    panels = gallery_panels()
    rows = [panels[start : start + ACROSS] for start in range(0, len(panels), ACROSS)]
    return panel_picture(rows, NAME, TITLE, fingerprint(panels)).save(folder)
