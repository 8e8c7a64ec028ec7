"""Compressed and pooled keys and values, query by query from their definitions, and their limits, which are softmax."""

import pytest
import torch

from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


@pytest.mark.parametrize("causal", [True, False])
def test_memory_compressed_attention_query_by_query(causal):
    """11 tokens in blocks of 3: three whole ones and a part of one."""
    layer = layer_of("mca", causal, ratio=3)
    q, k, v, mixed = projected(layer, tokens(11, batch=1))
    for h in range(2):
        for i in range(11):
            blocks = (i + 1) // 3 if causal else 4
            rows = [
                [sum(t[0, h, 3 * b + r] @ taps[h, r] for r in range(3) if 3 * b + r < 11) for b in range(blocks)]
                for t, taps in ((k, layer.of_keys), (v, layer.of_values))
            ]
            own = range(3 * blocks, i + 1) if causal else range(0)
            keys, values = ([*row, *(t[0, h, j] for j in own)] for row, t in zip(rows, (k, v), strict=True))
            expected = softmax_row(q[0, h, i], torch.stack(keys), torch.stack(values))
            torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_one_token_left_as_they_are_is_softmax(causal):
    layer, softmax = layer_of("mca", causal, ratio=1), layer_of("softmax", causal)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.of_keys.copy_(torch.eye(8))
        layer.of_values.copy_(torch.eye(8))
    torch.testing.assert_close(layer(tokens(11)), softmax(tokens(11)), **EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize(("kernel", "stride"), [(4, 4), (5, 4), (2, 3)])
def test_poolingformer_query_by_query(causal, pool, kernel, stride):
    layer = layer_of("poolingformer", causal, near=2, far=3, kernel=kernel, stride=stride, pool=pool)
    q, k, v, mixed = projected(layer, tokens(13, batch=1))
    near = [slice(max(i - 2, 0), i + 1 if causal else i + 3) for i in range(13)]
    fine = torch.stack(
        [torch.stack([softmax_row(q[0, h, i], k[0, h, near[i]], v[0, h, near[i]]) for i in range(13)]) for h in (0, 1)]
    )
    parts = layer.second(fine.transpose(0, 1).flatten(1)).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(0, 1) for part in parts)
    for h in range(2):
        for i in range(13):
            keys, values, start = [], [], 0
            while start == 0 or start + kernel - stride < 13:
                last = start + kernel - 1
                seen = last <= i if causal else True
                if seen and max(start - i, i - last, 0) <= 3:
                    for rows, t in ((keys, k), (values, v)):
                        window = t[h, start : last + 1]
                        rows.append(window.mean(0) if pool == "mean" else window.amax(0))
                start += stride
            wide = softmax_row(q[h, i], torch.stack(keys), torch.stack(values)) if keys else 0
            torch.testing.assert_close(mixed[0, h, i], fine[h, i] + wide, **EXACT)


@pytest.mark.parametrize("causal", [True, False])
def test_poolingformers_first_level_without_a_limit_is_softmax(causal):
    """And its second adds nothing where its values are 0."""
    layer, softmax = layer_of("poolingformer", causal, near=40), layer_of("softmax", causal)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    with torch.no_grad():
        layer.second.weight.zero_()
        layer.second.bias.zero_()
    torch.testing.assert_close(layer(tokens(30)), softmax(tokens(30)), **EXACT)


def test_impossible_knobs_are_refused():
    with pytest.raises(SetupError, match=r"attention.ratio=0: must be at least 1"):
        layer_of("mca", ratio=0)
    with pytest.raises(SetupError, match=r"attention.stride=0: must be at least 1"):
        layer_of("poolingformer", stride=0)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 4), (4, 4), (2, 3)])
@pytest.mark.parametrize("kept", [1, 6, 17, 18, 20, 21, 29])
def test_poolingformers_windows_end_where_the_padding_begins(kernel, stride, kept):
    layer = layer_of("poolingformer", near=2, far=30, kernel=kernel, stride=stride)
    x = tokens(30)
    keep = (torch.arange(30) < kept).expand(2, -1)
    torch.testing.assert_close(layer(x, keep=keep)[:, :kept], layer(x[:, :kept]), **EXACT)
