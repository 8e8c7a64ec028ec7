"""Mean maps are means over sequences; by offset they are means over pairs, with a loop over pairs."""

from types import SimpleNamespace

import pytest
import torch

from fourierformer import attention
from fourierformer.analysis.heads import run_with_hooks
from fourierformer.analysis.maps import MapSum, by_offset, text_maps
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from fourierformer.tasks.trained import TrainedClassifier, TrainedEncoderDecoder, TrainedMaskedModel


def test_mean_maps_do_not_depend_on_the_batches():
    layer = attention.build("band", Geometry(dim=16, heads=2, length=9, causal=True), window=3)
    x = torch.randn(5, 9, 16, generator=torch.Generator().manual_seed(0))
    means = []
    for size in (5, 2):
        one = MapSum()
        run_with_hooks([layer], [one.before_forward], layer, x.split(size))
        means.append(one.mean())
    torch.testing.assert_close(*means)
    torch.testing.assert_close(means[0].sum(-1), torch.ones(2, 9))
    q, k, _ = layer.project(x)
    torch.testing.assert_close(means[0], layer.maps(q, k).mean(0))


def test_by_offset_is_the_mean_over_pairs():
    rows, columns, prefix = 3, 4, 1
    maps = torch.rand(2, 13, 13, generator=torch.Generator().manual_seed(0))
    pairs: dict[tuple[int, int], list[torch.Tensor]] = {}
    for i in range(12):
        for j in range(12):
            offset = j // columns - i // columns, j % columns - i % columns
            pairs.setdefault(offset, []).append(maps[:, prefix + i, prefix + j])
    found = by_offset(maps, (rows, columns), prefix)
    assert found.shape == (2, 2 * rows - 1, 2 * columns - 1)
    for (down, right), weights in pairs.items():
        torch.testing.assert_close(found[:, down + rows - 1, right + columns - 1], torch.stack(weights).mean(0))
    assert len(pairs) == found[0].numel()


@pytest.mark.parametrize("kind", [TrainedMaskedModel, TrainedEncoderDecoder, TrainedClassifier])
def test_maps_of_a_text_need_a_model_of_the_next_token(kind):
    """A masked model and an encoder-decoder read a text, too: what they lack is its next token."""
    with pytest.raises(SetupError, match="that predict its next token, and one of task=t does not"):
        text_maps(kind(None, SimpleNamespace(task="t"), None, 1), "the")
