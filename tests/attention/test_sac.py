"""Sparse adaptive connection: its choices are distinct and follow the stated law, and its gradient is REINFORCE's."""

import pytest
import torch

from tests.helpers.zoo_cases import BOTH, EXACT, layer_of, projected, tokens


@BOTH
@pytest.mark.parametrize("training", [True, False])
def test_choosing_every_key_is_softmax(causal, training):
    layer, softmax = layer_of("sac", causal, edges=12).train(training), layer_of("softmax", causal)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(layer(tokens(12)), softmax(tokens(12)), **EXACT)


@BOTH
@pytest.mark.parametrize("training", [True, False])
def test_each_query_has_itself_and_as_many_other_keys(causal, training):
    layer, x = layer_of("sac", causal, edges=4).train(training), tokens(12)
    weights = layer.maps(*layer.project(x)[:2])
    edges = (weights > 0).sum(-1)
    expected = torch.arange(12).clamp_max(4) + 1 if causal else torch.full((12,), 5)
    assert (edges == expected).all()
    assert (weights.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert torch.equal(weights[:, 0] > 0, weights[:, 1] > 0)  # the same for all heads


@BOTH
def test_the_selected_key_is_the_next_input_of_the_predictor(causal):
    """Three edges of every query, one after the other, with the LSTM written out."""
    layer = layer_of("sac", causal, edges=3)
    k = projected(layer, tokens(7, batch=1))[1]
    visible = torch.ones(1, 7, 7, dtype=torch.bool)
    connected, log_p = layer.connections(7, k, visible.tril() if causal else visible)
    nodes, cell, total = k.transpose(1, 2).flatten(2)[0], layer.cell, 0.0
    keys = layer.embed(nodes)
    for i in range(7):
        h, c, met = layer.enter(nodes[i]), torch.zeros(32).double(), [i]
        for _ in range(3):
            left = [j for j in range(i + 1 if causal else 7) if j not in met]
            if not left:
                break
            logits = torch.stack([keys[j] @ h / 32**0.5 + layer.by_distance[abs(i - j)] for j in left])
            met.append(left[int(logits.argmax())])
            total = total + logits.log_softmax(0).max()
            of_key = cell.weight_ih @ keys[met[-1]] + cell.bias_ih
            into, kept, new, out = (of_key + cell.weight_hh @ h + cell.bias_hh).chunk(4)
            c = kept.sigmoid() * c + into.sigmoid() * new.tanh()
            h = out.sigmoid() * c.tanh()
        assert connected[0, i].nonzero()[:, 0].tolist() == sorted(met)
    torch.testing.assert_close(log_p[0], total / 7, **EXACT)


def first_choice(layer, k: torch.Tensor) -> torch.Tensor:
    """p(j) of each query for its first edge, from the formula: k (B, H, N, D) -> (B, N, N)."""
    nodes = k.transpose(1, 2).flatten(2)
    place = torch.arange(k.shape[2])
    logits = layer.enter(nodes) @ layer.embed(nodes).mT / 32**0.5 + layer.by_distance[(place - place[:, None]).abs()]
    return logits.masked_fill(torch.eye(k.shape[2], dtype=torch.bool), -torch.inf).softmax(-1)


def test_samples_follow_the_stated_probabilities():
    """4,000 rows of the same sequence: frequencies within four standard errors."""
    layer, rows = layer_of("sac", edges=1).train(), 4000
    k = projected(layer, tokens(5, batch=1))[1]
    connected, log_p = layer.connections(5, k.expand(rows, -1, -1, -1), torch.ones(1, 1, 5, dtype=torch.bool))
    p = first_choice(layer, k)[0]
    chosen = connected & ~torch.eye(5, dtype=torch.bool)
    error = (p * (1 - p) / rows).sqrt()
    assert ((chosen.double().mean(0) - p).abs() <= 4 * error + 1e-12).all()
    expected = torch.where(chosen, p, 1.0).log().sum(-1).mean(-1)
    torch.testing.assert_close(log_p, expected, **EXACT)


def test_edges_of_a_query_are_drawn_independently():
    """A predictor that prefers nothing: all six pairs of the four other keys equally often in 6,000 rows."""
    layer = layer_of("sac", edges=2).train()
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    k, visible = torch.zeros(6000, 2, 5, 8).double(), torch.ones(1, 1, 5, dtype=torch.bool)
    connected, _ = layer.connections(1, k, visible)
    pairs, counts = connected[:, 0, :4].unique(dim=0, return_counts=True)
    assert len(pairs) == 6
    assert (counts - 1000).abs().max() < 5 * (6000 * 5 / 36) ** 0.5


def test_the_added_loss_has_the_gradient_of_the_expected_loss():
    """A loss that is a known function of the edges: the mean gradient over 4,000 rows is that of its expectation, over
    N. d/dtheta E[L] with L = sum over queries of cost[i, edge of i], and E[L] = sum_ij p_ij cost_ij."""
    layer, rows = layer_of("sac", edges=1).train(), 4000
    k = 0.2 * projected(layer, tokens(5, batch=1))[1].detach()  # near 0 no edge is too rare to be sampled
    cost = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (exact,) = torch.autograd.grad((first_choice(layer, k)[0] * cost).sum() / 5, layer.by_distance)
    connected, log_p = layer.connections(5, k.expand(rows, -1, -1, -1), torch.ones(1, 1, 5, dtype=torch.bool))
    losses = (connected & ~torch.eye(5, dtype=torch.bool)).double().mul(cost).sum((1, 2))
    layer.baseline.copy_(torch.stack([losses.mean(), torch.ones_like(losses[0])]))
    layer._log_probability = log_p
    added = layer.auxiliary_loss(losses)
    torch.testing.assert_close(added, (losses - losses.mean()) * log_p, **EXACT)
    halves = [torch.autograd.grad(part.mean(), layer.by_distance, retain_graph=True)[0] for part in added.split(40)]
    found, error = torch.stack(halves).mean(0), torch.stack(halves).std(0) / len(halves) ** 0.5
    assert ((found - exact).abs() <= 4 * error + 1e-9).all()
    assert exact.abs().max() > 4 * error.max()  # the test could fail


def test_the_baseline_is_the_moving_average_of_the_loss():
    """0.9 of the past, 0.1 of the step's mean; a first step has no advantage, a bad one leaves it as it was."""
    layer, x = layer_of("sac").train(), tokens(6)
    value = weight = 0.0
    for step, losses in enumerate(([3.0, 5.0], [1.0, 2.0], [float("nan"), 1.0])):
        layer.begin_step(step)
        layer(x)
        added = layer.auxiliary_loss(torch.tensor(losses).double())
        assert step or not added.any()
        good = step < 2
        layer.end_step(lambda x: x, torch.tensor(float(good)))
        if good:
            value, weight = 0.9 * value + 0.1 * sum(losses) / 2, 0.9 * weight + 0.1
        assert layer.baseline.tolist() == pytest.approx([value, weight])


def test_no_gradient_goes_from_the_predictor_into_the_model():
    layer, x = layer_of("sac").train(), tokens(6).requires_grad_()
    layer(x)
    layer.baseline.fill_(1.0)
    (gradient,) = torch.autograd.grad(layer.auxiliary_loss(torch.ones(2).double() * 3).sum(), x, allow_unused=True)
    assert gradient is None
