"""What every attention choice owes a model, over every registered name: a new mechanism is tested by existing."""

import inspect
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError

CONFIGS = Path(__file__).parents[2] / "configs"
LENGTH = 197
NAMES = attention.available()
CHOICES = [(n, c) for c in (True, False) for n in NAMES if n in attention.available(causal=c)]


def built(name: str, causal: bool, seed: int = 0, length: int = LENGTH) -> attention.Attention:
    torch.manual_seed(seed)
    grid = (14, 14) if attention.mechanism(name).needs_grid else None
    return attention.build(
        name, Geometry(dim=32, heads=4, length=length, causal=causal, grid=grid, prefix=1 if grid else 0)
    )


def tokens(n: int, batch: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, n, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "causal"), CHOICES)
@pytest.mark.parametrize("n", [1, 7, 33, LENGTH])
def test_shape_dtype_and_finite_gradients(name, causal, n):
    layer = built(name, causal)
    x = tokens(n).requires_grad_()
    y = layer(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.isfinite().all()
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, f"{key} gets no gradient"
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", [n for n, causal in CHOICES if causal])
@pytest.mark.parametrize("cut", [1, 16, 32])
def test_future_tokens_do_not_change_the_past(name, cut):
    """Values, not masks: a statistic or a selection over the whole sequence leaks just as well."""
    layer = built(name, causal=True).eval()
    x = tokens(33)
    other = torch.cat([x[:, :cut], 5 * tokens(33, seed=2)[:, cut:]], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[:, :cut], layer(other)[:, :cut], rtol=0, atol=1e-5)
        assert (layer(x)[:, cut:] - layer(other)[:, cut:]).abs().max() > 1e-4  # the change is visible where it may be


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_batch_rows_are_independent_and_evaluation_is_deterministic(name, causal):
    layer = built(name, causal).eval()
    x = tokens(33, batch=3)
    with torch.no_grad():
        together = layer(x)
        assert torch.equal(together, layer(x))
        for row in range(3):
            torch.testing.assert_close(layer(x[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
@pytest.mark.parametrize("last", [1, 5])
def test_last_positions_only_equal_the_full_result(name, causal, last):
    layer = built(name, causal).eval()
    x = tokens(33)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, last=last), layer(x)[:, -last:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
@pytest.mark.parametrize("queries", [1, 5, 33])
def test_maps_are_the_weights_that_mix_applies(name, causal, queries):
    layer = built(name, causal).eval()
    x = 3 * tokens(33)  # far from 0, where all maps would be uniform
    with torch.no_grad():
        q, k, v = layer.project(x)
        if type(layer).maps is attention.Attention.maps:
            with pytest.raises(SetupError, match=f"{type(layer).__name__} attention has no maps: .+"):
                layer.maps(q, k)
            return
        q = q[:, :, -queries:] if layer.partial_queries else q
        maps = layer.maps(q, k)
        assert maps.shape == (2, 4, q.shape[2], 33)
        torch.testing.assert_close(maps @ v, layer.mix(q, k, v, x), rtol=1e-5, atol=1e-5)


def test_a_mechanism_without_maps_says_so():
    layer = attention.Attention(Geometry(dim=32, heads=4, length=33, causal=True))
    with pytest.raises(SetupError, match="no maps"):
        layer.maps(*layer.project(tokens(33))[:2])


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_state_round_trip(name, causal):
    one, two = built(name, causal, seed=0).eval(), built(name, causal, seed=5).eval()
    two.load_state_dict(one.state_dict())
    x = tokens(33)
    assert torch.equal(one(x), two(x))


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_autocast_stays_finite(name, causal):
    layer = built(name, causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(tokens(33))
    y.float().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_yaml_holds_exactly_the_knobs_with_their_defaults(name):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        values = OmegaConf.to_container(compose(overrides=[f"+attention={name}"])["attention"])
    assert values.pop("name") == name
    knobs = attention.knobs(name)
    assert values == {n: p.default for n, p in knobs.items()}
    assert all(p.annotation is not inspect.Parameter.empty for p in knobs.values())


def test_every_yaml_is_registered():
    assert sorted(p.stem for p in (CONFIGS / "attention").glob("*.yaml")) == NAMES


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_available_is_refused_with_its_reason(name, causal):
    geometry = Geometry(dim=32, heads=4, length=33, causal=causal)
    if name in attention.available(causal=causal, grid=False):
        assert attention.build(name, geometry).geometry is geometry
        return
    verdict = attention.mechanism(name).causal_ok if causal else attention.mechanism(name).full_ok
    with pytest.raises(SetupError, match=verdict if isinstance(verdict, str) else "grid"):
        attention.build(name, geometry)


def test_a_refusing_mechanism_names_its_reason_and_who_can(monkeypatch):
    monkeypatch.setattr(attention.mechanism("softmax"), "causal_ok", "it mixes future tokens")
    with pytest.raises(SetupError, match=r"it mixes future tokens.*These can: .*fourier"):
        attention.build("softmax", Geometry(dim=32, heads=4, length=33, causal=True))


@pytest.mark.parametrize(("name", "knob", "hint"), [("fourierr", None, "'fourier'"), ("fourier", "powr", "'power'")])
def test_unknown_names_and_knobs_suggest_the_nearest(name, knob, hint):
    with pytest.raises(SetupError, match=hint):
        attention.build(name, Geometry(dim=32, heads=4, length=33, causal=True), **({knob: 1} if knob else {}))
