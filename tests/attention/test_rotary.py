"""Rotary positions: queries and keys are rotated by their position, and only differences of positions count."""

import cmath
import re

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Attention, Geometry
from fourierformer.attention.mechanisms.fourier import Fourier
from fourierformer.attention.switches import rotated
from fourierformer.errors import SetupError
from tests.helpers.mechanisms import NAMES
from tests.helpers.one_by_one import one_by_one

EXACT = {"rtol": 0, "atol": 1e-10}


def built(name: str, causal: bool = True, *, base: float = 10000.0, **knobs) -> Attention:
    """8 coordinates per head, in float64, with weights far from 0, in evaluation."""
    torch.manual_seed(0)
    layer = attention.build(name, Geometry(32, 4, 33, causal, rotary_base=base), **knobs).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return layer


def tokens(n: int = 33, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, n, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def refusal(name: str, causal: bool) -> str | None:
    try:
        built(name, causal)
    except SetupError as error:
        return str(error)
    return None


TEXT = [(n, c) for c in (True, False) for n in NAMES if n in attention.available(causal=c, grid=False)]
ROTARY = [(n, c) for n, c in TEXT if refusal(n, c) is None]
REFUSED = {  # causal or not
    *("aft_conv", "aft_full", "aft_local", "aft_simple", "clustered", "delta_net", "dpfp", "elliptical"),
    *("etc", "fast_weight", "fnet", "fourier", "fourier_first_coordinate", "fourier_head"),
    *("fourier_matched", "fourier_sink", "fourier_vector", "gated_delta_net", "gaussian_full", "gla"),
    *("hard_gaussian", "isab", "linear_elu", "linear_relu", "local_gaussian", "local_linear_fourier", "lsh"),
    *("luna", "mca", "mlk", "mom_fourier", "performer", "performer_trig", "rfa", "routing", "sac", "synthesizer"),
}


def shifted(layer: Attention, x: torch.Tensor, first: int) -> torch.Tensor:
    return layer.mix(*layer.arguments(x, first=first), x)


def test_both_queries_of_differential_have_all_frequencies():
    """A rotation of all coordinates would leave the slow half of them to the second map."""
    layer, x = built("differential"), tokens()
    rotated, plain = layer.arguments(x)[0], layer.project(x)[0]
    angles = torch.arange(33).double()[:, None] * torch.tensor([1.0, 0.01], dtype=torch.float64)
    turns = torch.polar(torch.ones_like(angles), angles)
    for half in (slice(0, 4), slice(4, 8)):
        expected = torch.view_as_complex(plain[..., half].unflatten(-1, (2, 2)).contiguous()) * turns
        torch.testing.assert_close(rotated[..., half], torch.view_as_real(expected).flatten(-2), **EXACT)


@pytest.mark.parametrize(("name", "causal"), ROTARY)
def test_only_differences_of_positions_count(name, causal):
    layer, x = built(name, causal), tokens()
    torch.testing.assert_close(shifted(layer, x, first=17), shifted(layer, x, first=0), **EXACT)


@pytest.mark.parametrize(("name", "causal"), ROTARY)
def test_the_distance_of_queries_and_keys_counts(name, causal):
    layer, x = built(name, causal), tokens(16)
    q, k, v = layer.arguments(x)
    moved = layer.arguments(x, first=3)[1]
    change = (layer.mix(q, moved, v, x) - layer.mix(q, k, v, x)).abs().max()
    assert (change > 1e-4) == (name != "none")


def test_the_papers_kernel_is_not_relative():
    """Forced: a rotation turns q - k before the product over its coordinates is taken."""
    torch.manual_seed(0)
    layer, x = Fourier(Geometry(32, 4, 33, True, rotary_base=10000.0)).double().eval(), tokens()
    assert not torch.allclose(shifted(layer, x, first=17), shifted(layer, x, first=0), rtol=0, atol=1e-4)


def test_the_others_refuse_in_one_line():
    refused = {name for name, causal in TEXT if refusal(name, causal)}
    assert refused == REFUSED
    for name, causal in TEXT:
        if name in REFUSED:
            start = f"attention '{name}' cannot have rotary positions: "
            assert re.fullmatch(f"{start}.+. Set model.position=sinusoid", refusal(name, causal))
    assert "take attention=fourier_disc" in refusal("fourier", True)


@pytest.mark.parametrize("method", ["rff", "gauss"])
def test_estimates_of_the_product_of_sincs_refuse_for_the_reason_of_the_product(method):
    with pytest.raises(SetupError, match="cannot have rotary positions: a product of sincs"):
        built("fourier_linear", method=method)


def test_softmax_is_its_formula_with_coordinates_in_pairs_as_complex_numbers():
    layer, x = built("softmax", base=50.0), tokens(9)
    q, k, v = layer.project(x)
    found = layer.mix(*layer.arguments(x), x)
    q, k = (torch.view_as_complex(t.unflatten(-1, (4, 2)).contiguous()) for t in (q, k))
    for i in range(9):
        logits = []
        for j in range(i + 1):
            turned = torch.tensor([cmath.exp(1j * (j - i) * 50 ** (-m / 4)) for m in range(4)], dtype=torch.complex128)
            logits.append((q[:, :, i].conj() * k[:, :, j] * turned).real.sum(-1) / 8**0.5)
        expected = torch.einsum("jbh,bhjd->bhd", torch.stack(logits).softmax(0), v[:, :, : i + 1])
        torch.testing.assert_close(found[:, :, i], expected, **EXACT)


@pytest.mark.parametrize(("name", "causal"), ROTARY)
def test_the_last_queries_have_the_last_positions(name, causal):
    layer, x = built(name, causal), tokens()
    torch.testing.assert_close(layer(x, last=5), layer(x)[:, -5:], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [n for n, causal in ROTARY if causal and built(n).start(1) is not None])
def test_one_token_after_the_other_has_the_outputs_of_all_together(name):
    layer, x = built(name), tokens()
    torch.testing.assert_close(one_by_one(layer, x), layer(x), rtol=1e-7, atol=1e-7)


def test_a_token_without_its_position_is_refused():
    layer = built("band")
    with pytest.raises(ValueError, match="needs the token's position"):
        layer.step(tokens(1), layer.start(2))


def test_a_single_token_is_not_changed():
    layer, x = built("softmax"), tokens(1)
    torch.testing.assert_close(layer(x), layer.proj(layer.qkv(x)[..., 64:]), **EXACT)


def test_memory_has_no_positions():
    rotary, plain = built("softmax"), attention.build("softmax", Geometry(32, 4, 33, True)).double()
    plain.load_state_dict(rotary.state_dict())
    assert torch.equal(rotary(tokens(), tokens(12)), plain(tokens(), tokens(12)))


def test_lengths_do_not_change_and_a_large_base_leaves_all_but_the_first_pair():
    layer, x = built("softmax", base=1e30), tokens()
    for plain, turned in zip(layer.project(x)[:2], layer.arguments(x)[:2], strict=True):
        torch.testing.assert_close(turned.norm(dim=-1), plain.norm(dim=-1), **EXACT)
        torch.testing.assert_close(turned[..., 2:], plain[..., 2:], rtol=0, atol=1e-5)
        assert not torch.allclose(turned[..., :2], plain[..., :2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_are_exact_in_half_precision(dtype):
    """bfloat16 itself holds whole numbers up to 256 only. Vectors that it holds are turned by the angles of float64."""
    x = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = rotated(x.double(), 1000, 50.0)
    torch.testing.assert_close(rotated(x, 1000, 50.0), exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "dim", "message"),
    [("softmax", 12, "3 coordinates per head are an odd number"), ("differential", 24, "must be a multiple of 4")],
)
def test_coordinates_that_are_no_pairs_are_refused(name, dim, message):
    with pytest.raises(SetupError, match=message):
        attention.build(name, Geometry(dim, 4, 8, True, rotary_base=10000.0))
