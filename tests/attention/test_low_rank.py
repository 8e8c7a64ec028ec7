"""Linformer and Nystroem: their limits, which are softmax, their rank, and the pseudo-inverse's order."""

import pytest
import torch

from fourierformer.attention.mechanisms.low_rank import pseudo_inverse
from fourierformer.errors import SetupError
from tests.helpers.zoo_cases import EXACT, layer_of, projected, softmax_row, tokens


def softmax_like(layer):
    softmax = layer_of("softmax")
    softmax.load_state_dict(layer.state_dict(), strict=False)
    return softmax


@pytest.mark.parametrize("share", ["none", "heads", "kv"])
def test_linformer_is_softmax_over_projected_rows(share):
    layer = layer_of("linformer", rank=5, share=share)
    assert layer.along.shape[:2] == {"none": (2, 2), "heads": (2, 1), "kv": (1, 1)}[share]
    q, k, v, mixed = projected(layer, tokens(9, batch=1))
    for h in range(2):
        own = h if share == "none" else 0
        e, f = layer.along[0, own, :, :9], layer.along[-1, own, :, :9]
        for i in range(9):
            torch.testing.assert_close(mixed[0, h, i], softmax_row(q[0, h, i], e @ k[0, h], f @ v[0, h]), **EXACT)


def test_linformer_with_the_identity_is_softmax():
    layer = layer_of("linformer", rank=12, length=12)
    with torch.no_grad():
        layer.along.copy_(torch.eye(12))
    torch.testing.assert_close(layer(tokens(12)), softmax_like(layer)(tokens(12)), **EXACT)


@pytest.mark.parametrize(
    ("name", "knobs"), [("linformer", {"rank": 5}), ("nystrom", {"landmarks": 5}), ("luna", {"rows": 5})]
)
def test_maps_have_the_stated_rank(name, knobs):
    layer = layer_of(name, **knobs)
    maps = layer.maps(*layer.project(tokens(30))[:2])
    assert (torch.linalg.matrix_rank(maps, rtol=1e-10) <= 5).all()


def test_a_sequence_longer_than_the_projection_is_refused():
    with pytest.raises(SetupError, match="linformer projects 40 positions, got a sequence of 41"):
        layer_of("linformer")(tokens(3), tokens(41))


def test_one_step_of_the_pseudo_inverse_is_of_order_three():
    """The polynomial of the step: I - A Z' = (3 E^3 + E^4) / 4 with E = I - A Z."""
    a = tokens(6, width=6).softmax(-1)
    before, after = pseudo_inverse(a, 2), pseudo_inverse(a, 3)
    identity = torch.eye(6, dtype=a.dtype)
    error = identity - a @ before
    torch.testing.assert_close(identity - a @ after, (3 * error @ error @ error + error.matrix_power(4)) / 4, **EXACT)
    torch.testing.assert_close(pseudo_inverse(a, 60), torch.linalg.pinv(a), rtol=1e-6, atol=1e-6)


def test_nystrom_with_a_landmark_for_every_token_is_softmax():
    """softmax pinv(softmax) softmax = softmax, as soon as the pseudo-inverse has converged."""
    layer = layer_of("nystrom", landmarks=16, iterations=60)
    for n in (16, 9):  # more landmarks than tokens: one for each
        torch.testing.assert_close(layer(tokens(n)), softmax_like(layer)(tokens(n)), rtol=0, atol=1e-5)


def test_nystrom_is_its_formula_with_means_of_segments():
    """12 tokens in 4 segments of 3, with an exact pseudo-inverse."""
    layer = layer_of("nystrom", landmarks=4, iterations=60)
    q, k, v, mixed = projected(layer, tokens(12))
    of_q, of_k = (t.unflatten(2, (4, 3)).mean(3) for t in (q, k))
    left, middle, right = ((a @ b.mT / 8**0.5).softmax(-1) for a, b in ((q, of_k), (of_q, of_k), (of_q, k)))
    torch.testing.assert_close(mixed, left @ torch.linalg.pinv(middle) @ right @ v, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("iterations", [1, 2])
def test_nystrom_takes_as_many_steps_of_the_pseudo_inverse_as_it_is_told(iterations):
    layer = layer_of("nystrom", landmarks=4, iterations=iterations)
    q, k, v, mixed = projected(layer, tokens(12))
    of_q, of_k = (t.unflatten(2, (4, 3)).mean(3) for t in (q, k))
    left, middle, right = ((a @ b.mT / 8**0.5).softmax(-1) for a, b in ((q, of_k), (of_q, of_k), (of_q, k)))
    torch.testing.assert_close(mixed, left @ pseudo_inverse(middle, iterations) @ right @ v, **EXACT)


def test_segments_of_any_number_of_tokens_are_nearly_equal():
    layer = layer_of("nystrom", landmarks=4)
    for n in range(1, 15):
        means, there = layer._segments(torch.ones(1, n, dtype=torch.bool), torch.float64)
        sizes = (means[0, 0] > 0).sum(-1)
        used = sizes[there[0, 0, 0]]
        assert (len(used), sizes.sum()) == (min(n, 4), n)
        assert used.max() - used.min() <= 1
        torch.testing.assert_close(means.sum(-1)[0, 0, there[0, 0, 0]], torch.ones(len(used)).double())


@pytest.mark.parametrize("name", ["linformer", "nystrom", "isab"])
def test_causal_models_are_refused_with_an_alternative(name):
    with pytest.raises(SetupError, match=rf"'{name}' cannot be causal: .*softmax"):
        layer_of(name, causal=True)
