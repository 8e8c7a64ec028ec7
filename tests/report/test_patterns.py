"""Pictures of patterns: every mechanism is in the gallery, what is committed is not stale, and a panel is the mask."""

import pytest
import torch

from fourierformer import attention
from fourierformer.analysis.maps import MeanMaps, by_offset
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.sparse import SparseAttention
from fourierformer.errors import SetupError
from fourierformer.report import patterns
from tests.helpers.command_line import REPOSITORY


def test_the_gallery_has_every_pattern():
    drawable = {n for n in attention.available() if issubclass(attention.mechanism(n), SparseAttention)}
    assert set(patterns.GALLERY) == drawable
    titles = {panel.title.split(",")[0] for panel in patterns.gallery_panels()}
    assert titles == drawable


def test_the_committed_gallery_is_of_this_code():
    folder = REPOSITORY / "docs/pictures"
    assert (folder / "patterns.png").is_file()
    svg = (folder / "patterns.svg").read_text(encoding="utf-8")
    assert patterns.fingerprint(patterns.gallery_panels()) in svg, "stale: run `make docs`"


def test_a_panel_shows_who_is_seen():
    """Rows of an image of 4 x 5 patches for two heads, columns for the others; the patch in the middle is 2, 2."""
    layer = patterns.layer_of("axial", False, 20, (4, 5), {})
    rows, columns, of_row, of_column = patterns.pattern_panels(layer, 20, "all")
    assert [panel.title for panel in (rows, columns, of_row)] == [
        "all, heads 1-2",
        "all, heads 3-4",
        "one patch, heads 1-2",
    ]
    assert torch.equal(rows.values, torch.block_diag(*torch.ones(4, 5, 5)))
    assert torch.equal(columns.values.sum(1), torch.full((20,), 4.0))
    expected = torch.zeros(4, 5)
    expected[2] = 1
    assert torch.equal(of_row.values, expected)
    expected = torch.zeros(4, 5)
    expected[:, 2] = 1
    assert torch.equal(of_column.values, expected)


def test_shares_of_a_tree_sum_to_its_keys():
    """A node of s tokens counts 1/s for each of them: the sum over a row is the number of keys."""
    layer = patterns.layer_of("bpt", True, 50, None, {"step": 2})
    keys = (layer.tree.lists(torch.arange(50), 50) >= 0).sum(1)
    torch.testing.assert_close(layer.shares(50)[0].sum(-1), keys.float())


@pytest.mark.parametrize("causal", [True, False])
def test_maps_by_offset_are_drawn_for_images_alone(causal):
    geometry = Geometry(
        dim=8, heads=2, length=7, causal=causal, grid=None if causal else (2, 3), prefix=0 if causal else 1
    )
    mean = MeanMaps(torch.rand(3, 2, 7, 7).softmax(-1), "valid", 10, 5, geometry)
    pictures = patterns.map_pictures(mean, [0, 2], "a run")
    assert [picture.name for picture in pictures] == ["attention_maps", "attention_by_offset"][: 1 if causal else 2]
    for picture, shape in zip(pictures, [(7, 7), (3, 5)], strict=False):
        panels = {axes.get_title(): axes.images[0].get_array() for axes in picture.figure.axes}
        assert list(panels) == [f"layer {layer}, head {head}" for layer in (0, 2) for head in (1, 2)]
        assert all(values.shape == shape and values.max() == 1 for values in panels.values())
        for layer, head in ((0, 0), (0, 1), (2, 0), (2, 1)):
            weights = mean.maps[layer, head]
            weights = by_offset(weights, (2, 3), 1) if shape == (3, 5) else weights
            largest = weights.max() if shape == (3, 5) else weights.amax(-1, keepdim=True)
            torch.testing.assert_close(torch.tensor(panels[f"layer {layer}, head {head + 1}"]), weights / largest)


def test_a_head_whose_weights_eps_swallows_is_white_and_says_so():
    """Drawn up to its largest weight it would look as if it attended to something."""
    weights = torch.rand(2, 7, 7).tril()
    maps = torch.stack([weights / weights.sum(-1, keepdim=True), 1e-15 * weights])  # two layers of two heads
    mean = MeanMaps(maps, "valid", 1, 5, Geometry(8, 2, 7, causal=True))
    picture = patterns.compared_maps_picture({"fourier": mean}, [0, 1], "maps", "maps")
    attending, off = picture.figure.axes[0], picture.figure.axes[2]
    assert attending.get_title() == "head 1"
    assert attending.images[0].get_array().max(axis=1).tolist() == pytest.approx([1] * 7)
    title, _, total = off.get_title().partition(", sum ")
    assert title == "head 1"
    assert float(total) == pytest.approx(1e-15 * float(weights[0].sum(-1).mean()), rel=0.1)
    assert off.images[0].get_array().max() < 1e-10
    assert picture.figure.axes[0].get_ylabel() == "fourier\nlayer 0"


def test_weights_of_0_and_below_0_have_a_map():
    """Underflow leaves a row of zeros; some mechanisms have signed weights, whose sum the title tells."""
    maps = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [-0.5, 1.0]]])[None]  # one layer of two heads
    mean = MeanMaps(maps, "valid", 1, 5, Geometry(8, 2, 2, causal=True))
    zero, signed = patterns.compared_maps_picture({"a": mean}, [0], "maps", "maps").figure.axes
    assert zero.get_title() == "head 1, sum 0.00"
    assert zero.images[0].get_array().tolist() == [[0, 0], [0, 0]]
    assert signed.get_title() == "head 2, sum 0.75"
    assert signed.images[0].get_array().tolist() == [[1, 0], [0.5, 1]]


def test_what_sees_everything_has_no_pattern():
    with pytest.raises(SetupError, match=r"'softmax' has no pattern of positions.*band.*A run directory"):
        patterns.layer_of("softmax", False, 8, None, {})
