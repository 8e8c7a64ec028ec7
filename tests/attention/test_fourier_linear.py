"""Linear Fourier attention against the printed formulas, the exact kernel and its own forms."""

import math
import warnings

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.mechanisms.fourier_linear import FLOOR, FourierLinear, radius_for
from fourierformer.errors import SetupError
from fourierformer.kernels.sinc import sinc_attention

METHODS = ["taylor", "rff", "gauss"]


def layer(method: str, *, width: int = 6, heads: int = 3, causal: bool = False, **knobs) -> FourierLinear:
    torch.manual_seed(0)
    geometry = Geometry(dim=width * heads, heads=heads, length=256, causal=causal)
    return attention.build("fourier_linear", geometry, method=method, **knobs).double()


def heads_of(width: int, deviation: float, tokens: int = 256) -> list[torch.Tensor]:
    """q, k ~ N(0, s^2), v ~ N(0, 1): (2, 3, tokens, width)."""
    q, k, v = torch.randn(3, 2, 3, tokens, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return [deviation * q, deviation * k, v]


def set_radius(mechanism: FourierLinear, radius: float) -> FourierLinear:
    with torch.no_grad():
        mechanism.radius.fill_(radius)
    return mechanism


def exact(q, k, v, radius) -> torch.Tensor:
    radius = torch.as_tensor(radius, dtype=torch.float64)
    return sinc_attention(q, k, v, radius, power=4, backend="portable")


def error(mechanism: FourierLinear, q, k, v, radius: float) -> float:
    """Relative error of the output against exact sinc^4 attention: the median over all heads."""
    expected = exact(q, k, v, radius)
    with torch.no_grad():
        actual = set_radius(mechanism, radius).mix(q, k, v, v)
    return ((actual - expected).norm(dim=(-2, -1)) / expected.norm(dim=(-2, -1))).median().item()


def printed_weights(mechanism: FourierLinear, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The unnormalised weights by the formulas of the class, over all pairs."""
    radius, n = mechanism.radius.detach()[:, :, None, None], mechanism.power
    difference = radius * (q[:, :, :, None] - k[:, :, None])
    if mechanism.method == "taylor":
        a = n / 6 * radius[..., 0].square()
        logits = 2 * a * (q @ k.mT)
        polynomial = sum(logits**m / math.factorial(m) for m in range(mechanism.order + 1))
        return polynomial * (-a * k.square().sum(-1)[..., None, :]).exp()
    if mechanism.method == "rff":
        frequencies = mechanism.feature_map.frequencies[:, None, :, :]
        return (difference @ frequencies.mT).cos().mean(-1)
    kernel = torch.sinc(difference / math.pi) ** n
    return kernel.unflatten(-1, (-1, 2)).prod(-1).mean(-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_maps_and_output_are_the_printed_formula(method, causal):
    mechanism = layer(method, causal=causal, nodes=16)
    set_radius(mechanism, 1.0)
    q, k, v = heads_of(6, 0.35, tokens=33)
    weights = printed_weights(mechanism, q, k)
    weights = weights.tril() if causal else weights
    visible = torch.arange(1.0, 34).double()[:, None] if causal else 33
    floor = FLOOR.get(method, 0)
    maps = weights / torch.maximum(weights.sum(-1, keepdim=True), torch.as_tensor(floor * visible))
    # Where the floor acts, sums keep the rounding of the float32 tables; the Gauss rule itself is 1e-6 off.
    tolerance = {"taylor": 1e-10, "rff": 1e-7, "gauss": 1e-6}[method]
    torch.testing.assert_close(mechanism.maps(q, k), maps, rtol=0, atol=tolerance)
    torch.testing.assert_close(mechanism.mix(q, k, v, v), maps @ v, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("knobs", [{}, {"normalize": "l2"}, {"power": 2}])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_all_forms_agree(method, causal, knobs):
    q, k, v = heads_of(6, 0.4, tokens=150)
    parallel, chunk = (layer(method, causal=causal, form=form, **knobs) for form in ("parallel", "chunk"))
    with torch.no_grad():
        expected = parallel.mix(q, k, v, v)
        torch.testing.assert_close(chunk.mix(q, k, v, v), expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(chunk.mix(q[:, :, -7:], k, v, v), expected[:, :, -7:], rtol=0, atol=1e-10)
        torch.testing.assert_close(parallel.mix(q[:, :, -7:], k, v, v), expected[:, :, -7:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch_has_an_empty_output_and_no_strain(method):
    mechanism = layer(method, causal=True)
    nothing = torch.zeros(0, *heads_of(6, 0.4, tokens=5)[0].shape[1:], dtype=torch.float64)
    assert mechanism.mix(nothing, nothing, nothing, nothing).shape == nothing.shape
    assert mechanism.strain.isnan()


@pytest.mark.parametrize("smooth", [0.0, 0.1])
@pytest.mark.parametrize("method", METHODS)
def test_steps_equal_the_whole_sequence(method, smooth):
    mechanism = layer(method, causal=True, smooth=0 if method == "taylor" else smooth)
    q, k, v = heads_of(6, 0.4, tokens=20)
    state, outputs = mechanism.start(2), []
    with torch.no_grad():
        for token in range(20):
            out, state = mechanism.mix_step(*(t[:, :, token : token + 1] for t in (q, k, v)), v, state)
            outputs.append(out)
        torch.testing.assert_close(torch.cat(outputs, 2), mechanism.mix(q, k, v, v), rtol=0, atol=1e-10)
    assert state[0].shape == (2, 3, mechanism.features, 7)


def test_the_number_of_features_is_the_documented_one():
    assert layer("taylor", width=16).features == 153
    assert layer("taylor", width=16, order=4).features == 4845
    assert layer("rff", features=64, smooth=0.1).features == 65
    assert layer("gauss", width=16, nodes=8).features == 8 * 64
    assert layer("gauss", width=16, nodes=3, head_kernel_dim=4).features == 4 * 82


def test_orthogonal_random_features_reach_the_kernel_at_the_known_rate():
    """tau = 0.85: error 0.015 with 4096 features, falling with the root of their number."""
    q, k, v = heads_of(16, 0.1)
    counts = [64, 512, 4096]
    errors = [error(layer("rff", width=16, features=count), q, k, v, 2.0) for count in counts]
    assert errors[-1] < 0.03
    slope = (math.log(errors[-1]) - math.log(errors[0])) / (math.log(counts[-1]) - math.log(counts[0]))
    assert -0.7 < slope < -0.35


def test_the_second_order_is_as_good_as_thousands_of_random_features():
    q, k, v = heads_of(16, 0.1)
    assert error(layer("taylor", width=16), q, k, v, 2.0) < 0.02
    assert error(layer("taylor", width=16, order=4), q, k, v, 2.0) < 0.01


@pytest.mark.parametrize("method", ["taylor", "rff"])
def test_no_linear_form_replaces_the_exact_kernel_at_a_large_tau(method):
    """As the docstring of the class states: at tau = 7.7 more than half of the output is wrong."""
    q, k, v = heads_of(16, 0.3)
    assert error(layer(method, width=16, features=1024), q, k, v, 2.0) > 0.5


def test_gauss_rules_keep_the_lobes_of_the_kernel():
    q, k, v = heads_of(2, 0.3)
    assert error(layer("gauss", width=2, nodes=8), q, k, v, 2.0) < 0.005
    q, k, v = heads_of(2, 1.0)  # R |u| up to 14: several zeros of sinc
    assert error(layer("gauss", width=2, nodes=40), q, k, v, 2.0) < 0.005
    assert error(layer("gauss", width=2, nodes=12), q, k, v, 2.0) > 0.5  # not resolved


@pytest.mark.parametrize("order", [2, 4])
def test_even_orders_have_positive_weights_everywhere(order):
    q, k, _ = heads_of(16, 1.0)
    maps = set_radius(layer("taylor", width=16, order=order), 0.6).maps(q, k)  # tau = 7.7, logits from -9 to 9
    assert (maps > 0).all()
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps[..., 0]))


@pytest.mark.parametrize(
    ("method", "knobs", "start", "tolerance"),
    [("gauss", {"nodes": 20}, 1.5, 1e-5), ("taylor", {"order": 6}, 0.5, 0.02)],
)
def test_the_radius_has_the_gradient_of_the_exact_kernel(method, knobs, start, tolerance):
    q, k, v = heads_of(2, 0.2)
    mechanism = set_radius(layer(method, width=2, **knobs), start)
    radius = torch.full((3, 1), start, dtype=torch.float64, requires_grad=True)
    per_head = torch.arange(1.0, 4).double()
    exact(q, k, v, radius).square().sum((0, 2, 3)).dot(per_head).backward()
    mechanism.mix(q, k, v, v).square().sum((0, 2, 3)).dot(per_head).backward()
    torch.testing.assert_close(mechanism.radius.grad, radius.grad, rtol=tolerance, atol=0)


def test_smooth_is_added_to_every_weight():
    q, k, _ = heads_of(6, 0.3, tokens=9)
    plain, smooth = (set_radius(layer("rff", smooth=value), 0.8).maps(q, k) for value in (0.0, 0.5))
    weights = printed_weights(set_radius(layer("rff"), 0.8), q, k)
    torch.testing.assert_close(plain, weights / weights.sum(-1, keepdim=True))
    torch.testing.assert_close(smooth, (weights + 0.5) / (weights + 0.5).sum(-1, keepdim=True))


def test_unit_vectors_forget_their_length():
    q, k, v = heads_of(6, 0.3, tokens=9)
    mechanism = layer("taylor", normalize="l2")
    torch.testing.assert_close(mechanism.mix(5 * q, k / 7, v, v), mechanism.mix(q, k, v, v))
    assert not torch.allclose(layer("taylor").mix(5 * q, k, v, v), layer("taylor").mix(q, k, v, v))


def test_frequencies_belong_to_seed_layer_and_head():
    def frequencies(seed: int, layer_index: int) -> torch.Tensor:
        geometry = Geometry(dim=18, heads=3, length=8, causal=True, seed=seed, layer=layer_index)
        return attention.build("fourier_linear", geometry, method="rff").feature_map.frequencies

    first = frequencies(0, 0)
    assert torch.equal(first, frequencies(0, 0))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, frequencies(1, 0))
    assert not torch.equal(first, frequencies(0, 1))


@pytest.mark.parametrize("knobs", [{"method": "taylor"}, {"method": "gauss"}, {"method": "rff"}, {"sampler": "sobol"}])
def test_a_model_counted_on_the_meta_device_leaves_nothing_behind(knobs):
    geometry = Geometry(dim=18, heads=3, length=8, causal=True)
    knobs = {"method": "rff", "power": 8, **knobs}  # a power whose table no other test has made
    with torch.device("meta"):
        attention.build("fourier_linear", geometry, **knobs)
    built = attention.build("fourier_linear", geometry, **knobs)
    assert {t.device.type for t in built.state_dict().values()} == {"cpu"}


@pytest.mark.parametrize("normalize", ["none", "l2"])
@pytest.mark.parametrize("method", ["taylor", "rff"])
def test_tau_starts_at_tau0(method, normalize):
    """Projection weights as both models draw them, and inputs of unit size as their LayerNorms leave them."""
    mechanism = layer(method, width=16, heads=8, causal=True, tau0=1.5, normalize=normalize)
    assert set(mechanism.diagnostics()) == {"radius"}  # nothing seen yet
    torch.nn.init.normal_(mechanism.qkv.weight, std=0.02)
    mechanism(torch.randn(4, 256, 128, generator=torch.Generator().manual_seed(0)).double())
    assert mechanism.diagnostics()["tau"] == pytest.approx(1.5, rel=0.25)  # of the sharpest of 8 heads
    variance = 1 / 16 if normalize == "l2" else 128 * 0.02**2
    assert mechanism.diagnostics()["radius"] == pytest.approx(math.sqrt(3 * 1.5 / (4 * 16 * variance)))


@pytest.mark.parametrize("norm", ["l2", "rms", "cosine"])
def test_tau_starts_at_tau0_whatever_normalises_queries_and_keys(norm):
    mechanism = attention.build("fourier_linear", Geometry(128, 8, 64, True, qk_norm=norm), tau0=1.5)
    mechanism(torch.randn(4, 64, 128, generator=torch.Generator().manual_seed(0)))
    assert mechanism.diagnostics()["tau"] == pytest.approx(1.5, rel=1e-4)  # all have one length


@pytest.mark.parametrize("method", ["taylor", "rff"])
def test_a_tau_beyond_2_gives_a_warning_and_a_smaller_one_does_not(method):
    q, k, v = heads_of(16, 1.0)
    mechanism = set_radius(layer(method, width=16), radius_for(1.5, 4, 16, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism.mix(q, k, v, v)
        assert mechanism.diagnostics()["tau"] == pytest.approx(1.5, rel=0.03)
    set_radius(mechanism, radius_for(3.0, 4, 16, 1.0)).mix(q, k, v, v)
    with pytest.warns(UserWarning, match="tau exceeds 2"):
        assert mechanism.diagnostics()["tau"] == pytest.approx(3.0, rel=0.03)


def test_a_gauss_rule_that_is_too_coarse_gives_a_warning():
    q, k, v = heads_of(2, 1.0)
    mechanism = set_radius(layer("gauss", width=2, nodes=40), 2.0)
    reach = 2 * (q[:, :, :, None] - k[:, :, None]).abs().amax().item()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism.mix(q, k, v, v)
        assert mechanism.diagnostics()["resolution"] == pytest.approx((4 * reach / 2 + 2) / 40)
    coarse = set_radius(layer("gauss", width=2, nodes=12), 2.0)
    coarse.mix(q, k, v, v)
    with pytest.warns(UserWarning, match=r"too coarse.*attention\.nodes"):
        coarse.diagnostics()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"order": 3}, "even"),
        ({"order": 0}, "even"),
        ({"order": 12}, "fewer|smaller"),
        ({"power": 3}, "even"),
        ({"tau0": 0.0}, "tau0=0.0: must be more than 0"),
        ({"smooth": 0.1}, "smooth"),
        ({"method": "rff", "smooth": -1.0}, "smooth"),
        ({"method": "rff", "features": 33}, "even"),
        ({"method": "gauss", "nodes": 1}, "nodes"),
        ({"method": "gauss", "head_kernel_dim": 3}, "divide the 16"),
        ({"method": "gauss", "head_kernel_dim": 16}, "smaller attention.head_kernel_dim"),
    ],
)
def test_impossible_knobs_are_refused(knobs, message):
    with pytest.raises(SetupError, match=message):
        attention.build("fourier_linear", Geometry(dim=64, heads=4, length=64, causal=True), **knobs)
