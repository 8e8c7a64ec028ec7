"""Sinkhorn attention: its matching is doubly stochastic, its attention is over sorted blocks, written out."""

import math
from itertools import permutations

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.sinkhorn import doubly_stochastic
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


def scores(n: int = 5) -> torch.Tensor:
    return torch.randn(3, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_rows_and_columns_of_the_matching_sum_to_one():
    possible = torch.ones(3, 5, 5, dtype=torch.bool)
    possible[1, 4, :] = possible[1, :, 4] = False  # a block of padding matches nothing
    s = doubly_stochastic(scores(), possible, 100)
    expected = torch.ones(3, 5, dtype=torch.float64)
    expected[1, 4] = 0
    torch.testing.assert_close(s.sum(-1), expected, **EXACT)
    torch.testing.assert_close(s.sum(-2), expected, **EXACT)


def test_a_cold_matching_is_the_best_permutation():
    s = doubly_stochastic(scores() / 0.01, torch.ones(3, 5, 5, dtype=torch.bool), 2000)
    for found, score in zip(s, scores(), strict=True):
        best = max(permutations(range(5)), key=lambda p: sum(score[i, p[i]] for i in range(5)))
        torch.testing.assert_close(found.argmax(-1), torch.tensor(best))
        torch.testing.assert_close(found.amax(-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-2)


def test_a_single_block_is_softmax():
    layer, softmax = layer_of("sinkhorn", block=20), layer_of("softmax")
    softmax.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(tokens(20)), softmax(tokens(20)), **EXACT)


def plain_matching(layer, q, k, blocks: int, noise=0.0, temperature=0.75) -> torch.Tensor:
    """S of one head: q, k (blocks, 4, D), noise of a bidirectional model (blocks, blocks)."""
    if not layer.geometry.causal:
        score = (q.mean(1) @ k.mean(1).mT / 8**0.5 + noise) / temperature
        for _ in range(8):
            score = score - score.logsumexp(1, keepdim=True)
            score = score - score.logsumexp(0, keepdim=True)
        return score.exp()
    s = torch.zeros(blocks, blocks, dtype=torch.float64)
    for i in range(1, blocks):
        so_far = q.flatten(0, 1)[: 4 * i + 1].mean(0)  # up to the first token of block i
        s[i, :i] = (k[:i].mean(1) @ so_far / 8**0.5 / temperature).softmax(0)
    return s


@pytest.mark.parametrize(("causal", "own_block"), [(True, True), (True, "auto"), (False, True), (False, "auto")])
def test_queries_attend_to_the_sorted_block(causal, own_block):
    """12 tokens in blocks of 4."""
    layer = layer_of("sinkhorn", causal, block=4, own_block=own_block)
    q, k, v, mixed = projected(layer, tokens(12, batch=1))
    for h in range(2):
        q_blocks, k_blocks, v_blocks = (t[0, h].unflatten(0, (3, 4)) for t in (q, k, v))
        s = plain_matching(layer, q_blocks, k_blocks, 3)
        for i in range(12):
            b = i // 4
            keys, values = [], []
            if s[b].any():
                keys += list(torch.einsum("j,jtd->td", s[b], k_blocks))
                values += list(torch.einsum("j,jtd->td", s[b], v_blocks))
            if causal or own_block is True:
                own = range(4 * b, i + 1 if causal else 4 * b + 4)
                keys, values = keys + [k[0, h, j] for j in own], values + [v[0, h, j] for j in own]
            expected = softmax_row(q[0, h, i], torch.stack(keys), torch.stack(values))
            torch.testing.assert_close(mixed[0, h, i], expected, **EXACT)


def test_noise_belongs_to_the_row_and_the_step():
    layer, x = layer_of("sinkhorn", block=4).train(), tokens(12, batch=6)
    quiet = layer.eval()(x)
    layer.train().begin_step(3)
    layer.begin_rows(torch.arange(6))
    together = layer(x)
    assert not torch.allclose(together, quiet)
    layer.begin_rows(torch.tensor([5, 2]))
    torch.testing.assert_close(layer(x[[5, 2]]), together[[5, 2]], **EXACT)
    layer.begin_step(4)
    assert not torch.allclose(layer(x[[5, 2]]), together[[5, 2]])


def test_noise_does_not_depend_on_the_padding_of_the_batch():
    layer, x = layer_of("sinkhorn", block=4).train(), tokens(24)
    keep = (torch.arange(24) < 12).expand(2, -1)
    torch.testing.assert_close(layer(x, keep=keep)[:, :12], layer(x[:, :12]), **EXACT)


def test_noise_has_gumbels_law():
    """P(g <= x) = exp(-exp(-x)): mean 0.5772, variance pi^2 / 6. Then argmax(score + g) follows softmax(scores)."""
    layer = layer_of("sinkhorn", block=4).train()
    noise = layer._gumbel(torch.zeros(2000, 2, 3, 3).double())
    n = noise.numel()
    assert noise.mean().item() == pytest.approx(0.577216, abs=5 * (math.pi**2 / 6 / n) ** 0.5)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.05)
    for x in (-1.0, 0.0, 2.0):
        share = math.exp(-math.exp(-x))
        assert (noise <= x).double().mean().item() == pytest.approx(share, abs=5 * (share * (1 - share) / n) ** 0.5)


@pytest.mark.parametrize("training", [True, False])
def test_noise_is_added_to_scores_before_they_are_divided_by_the_temperature(training, monkeypatch):
    layer = layer_of("sinkhorn", block=4, temperature=0.5).train(training)
    noise = torch.randn(1, 2, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    monkeypatch.setattr(layer, "_gumbel", lambda scores: noise)
    q, k, _, _ = projected(layer, tokens(12, batch=1))
    q, k = (t.unflatten(2, (3, 4)) for t in (q, k))
    found = layer.matching(q, k, torch.ones(1, 1, 3, 4, dtype=torch.bool))
    for h in range(2):
        expected = plain_matching(layer, q[0, h], k[0, h], 3, training * noise[0, h], temperature=0.5)
        torch.testing.assert_close(found[0, h], expected, **EXACT)


def test_what_cannot_be_is_refused():
    with pytest.raises(SetupError, match="own_block=false leaves the first block of a causal model without keys"):
        layer_of("sinkhorn", causal=True, own_block=False)
    with pytest.raises(SetupError, match=r"attention.temperature=0.0: must be more than 0"):
        layer_of("sinkhorn", temperature=0.0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [17, 39])
def test_rows_sum_to_one_where_a_block_is_not_full(n, causal):
    """Empty slots of the last block are not keys. Sinkhorn's last step normalises columns: rows to a few per cent."""
    torch.manual_seed(0)
    layer = attention.build("sinkhorn", Geometry(32, 4, 40, causal), iterations=50).double().eval()
    q, k, _ = layer.project(torch.randn(2, n, 32, generator=torch.Generator().manual_seed(1)).double())
    torch.testing.assert_close(layer.maps(q, k).sum(-1), torch.ones(2, 4, n).double(), rtol=0, atol=1e-6)


def test_second_derivatives_are_finite_where_no_block_is_full():
    """Slots without a token are divided by a number, too."""
    layer, x = layer_of("sinkhorn", block=4), tokens(3).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert second.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_finite_where_a_slot_has_unlikely_blocks_only(causal):
    """Slots that the last block, of 4 tokens, leaves empty take shares of 1e-30 and less from the other block."""
    for seed in range(8):
        torch.manual_seed(seed)
        layer = attention.build("sinkhorn", Geometry(32, 2, 64, causal)).eval()
        x = 10 * torch.randn(1, 4, 32).repeat_interleave(16, dim=1)
        keep = (torch.arange(64) < 20)[None]
        x = x if causal else x[:, :20]
        x.requires_grad_()
        layer(x, keep=keep if causal else None)[:, :20].square().sum().backward()
        assert x.grad.isfinite().all()
