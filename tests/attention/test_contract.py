"""What every attention choice owes a model, over every registered name: a new mechanism is tested by existing."""

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.errors import SetupError
from tests.helpers.command_line import CONFIGS, REPOSITORY
from tests.helpers.mechanisms import CHOICES, LENGTH, NAMES, built, has_maps, tokens
from tests.helpers.one_by_one import one_by_one

# the yaml of another installed package's mechanism is in that package
OWN = [name for name in NAMES if attention.mechanism(name).__module__.startswith("fourierformer.")]


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_shape_dtype_and_finite_gradients(name, causal):
    for n in (1, 7, 33, LENGTH):
        layer = built(name, causal)
        x = tokens(n).requires_grad_()
        y = layer(x)
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        assert y.isfinite().all(), n
        (y.square().sum() + layer.auxiliary_loss(torch.ones(2)).sum()).backward()
        assert x.grad.isfinite().all(), n
        for key, parameter in layer.named_parameters():
            assert parameter.grad is not None, f"{key} gets no gradient of {n} tokens"
            assert parameter.grad.isfinite().all(), f"{key}, {n} tokens"


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_second_derivative_is_the_difference_of_two_gradients_or_is_refused(name, causal):
    layer, x = built(name, causal, length=40).double(), tokens(5, batch=1).double()
    direction = tokens(5, batch=1, seed=2).double()

    def gradient(at):
        (of_x,) = torch.autograd.grad(layer.eval()(at).square().sum(), at, create_graph=True)
        return of_x

    second, refusal = None, ""
    try:
        (second,) = torch.autograd.grad((gradient(x.requires_grad_()) * direction).sum(), x)
    except (NotImplementedError, RuntimeError) as error:
        refusal = str(error)
    if second is None:
        assert re.search("first derivatives only|backward is not implemented", refusal)
        return
    after, before = (gradient((x + h * direction).detach().requires_grad_()) for h in (1e-5, -1e-5))
    expected = (after - before).detach() / 2e-5
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("name", [name for name, causal in CHOICES if not causal])
def test_fewer_tokens_than_the_prefix_of_a_grid_are_a_sequence_too(name):
    layer = attention.build(name, Geometry(dim=32, heads=4, length=14, causal=False, grid=(2, 5), prefix=4)).eval()
    for n in (1, 3, 4):
        x = tokens(n)
        assert layer(x).isfinite().all()
        torch.testing.assert_close(layer(x, last=1), layer(x)[:, -1:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("last", [0, -1])
def test_at_least_one_position_is_asked_for(last):
    with pytest.raises(ValueError, match=f"last={last}: .* at least 1"):
        attention.build("softmax", Geometry(dim=32, heads=4, length=14, causal=True))(tokens(3), last=last)


@pytest.mark.parametrize(("name", "causal"), dict(CHOICES).items())
def test_parameters_have_torchs_default_dtype(name, causal):
    torch.set_default_dtype(torch.float64)
    try:
        layer = built(name, causal, length=40)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(parameter.dtype == torch.float64 for parameter in layer.parameters())
    assert layer(tokens(5).double()).dtype == torch.float64


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_no_tokens_have_no_outputs(name, causal):
    assert built(name, causal, length=40)(tokens(0)).shape == (2, 0, 32)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_copies_and_pickles_compute_the_same(name, causal):
    layer, x = built(name, causal, length=40).eval(), tokens(40)
    expected = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "causal"), [(n, c) for n, c in CHOICES if attention.mechanism(n).adds_loss])
def test_a_layer_can_be_copied_in_the_middle_of_a_training_step(name, causal):
    layer, x = built(name, causal, length=40), tokens(12)
    expected = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
    layer.auxiliary_loss(torch.ones(2))  # still there


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_longer_sequence_works_or_is_refused_in_words(name, causal):
    for length in (1, 12):
        layer, x = built(name, causal, length=length), tokens(length + 1)
        if layer.longer_ok:
            assert layer(x).shape == x.shape
        else:
            with pytest.raises(SetupError, match=f"made for {length} positions, got a sequence of {length + 1}"):
                layer(x)


@pytest.mark.parametrize(
    ("name", "knob", "value", "expected"),
    [
        ("fourier", "coordinates", "frist", "'all' or 'first'"),
        ("performer", "kind", "positve", "'positive' or 'hyperbolic'"),
        ("band", "window", 2.5, "a whole number"),
        ("sinkhorn", "own_block", "no", "true or false"),
    ],
)
def test_a_value_that_a_knob_cannot_have_is_refused_from_python_too(name, knob, value, expected):
    with pytest.raises(SetupError, match=re.escape(f"attention '{name}': {knob}={value!r}: expected {expected}")):
        attention.build(name, Geometry(dim=32, heads=4, length=8, causal=True), **{knob: value})


def outcome(name, geometry, knob, value) -> str:
    """The refusal of a value, '' where the mechanism is built."""
    try:
        attention.build(name, geometry, **{knob: value})
    except SetupError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_a_whole_number_is_taken_for_a_float_or_refused_in_words(name, causal):
    geometry = built(name, causal).geometry
    of_floats = [knob for knob, parameter in attention.knobs(name).items() if "float" in str(parameter.annotation)]
    outcomes = {knob: outcome(name, geometry, knob, 1) for knob in of_floats}
    assert all(knob in text for knob, text in outcomes.items() if text), outcomes


@pytest.mark.parametrize("name", [n for n, causal in CHOICES if causal])
def test_future_tokens_do_not_change_the_past(name):
    """Values, not masks: a statistic or a selection over the whole sequence leaks just as well."""
    for training, n, cuts in (  # what is drawn in training is a function of the row's number
        *((True, 33, (1, 16, 32)), (False, 33, (1, 16, 32))),
        (False, LENGTH, (100,)),  # long sequences may take another way, in blocks
    ):
        x = tokens(n)
        with torch.no_grad():
            expected = built(name, causal=True).train(training)(x)
            for cut in cuts:
                other = torch.cat([x[:, :cut], 5 * tokens(n, seed=2)[:, cut:]], dim=1)
                y = built(name, causal=True).train(training)(other)
                torch.testing.assert_close(y[:, :cut], expected[:, :cut], rtol=0, atol=1e-5)
                change = (y[:, cut:] - expected[:, cut:]).abs().max()
                assert name == "none" or change > 1e-4  # visible where it may be


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
def test_last_positions_only_equal_the_full_result(name, causal):
    layer = built(name, causal).eval()
    x = tokens(33)
    with torch.no_grad():
        y = layer(x)
        for last in (1, 5):
            torch.testing.assert_close(layer(x, last=last), y[:, -last:], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [n for n, causal in CHOICES if causal])
def test_token_by_token_from_a_state_is_forward(name):
    layer, x = built(name, causal=True, length=40).double().eval(), tokens(12).double()
    if layer.start(2) is not None:
        with torch.no_grad():
            torch.testing.assert_close(one_by_one(layer, x), layer(x), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "causal"), CHOICES)
def test_maps_are_the_weights_that_mix_applies(name, causal):
    layer = built(name, causal).eval()
    x = 3 * tokens(33)  # far from 0, where all maps would be uniform
    with torch.no_grad():
        q, k, v = layer.project(x)
        if not has_maps(name):
            with pytest.raises(SetupError, match=f"{type(layer).__name__} attention has no maps: .+"):
                layer.maps(q, k)
            return
        for queries in (1, 5, 33) if layer.partial_queries else (33,):
            last = q[:, :, -queries:]
            maps = layer.maps(last, k)
            assert maps.shape == (2, 4, queries, 33)
            torch.testing.assert_close(maps @ v, layer.mix(last, k, v, x), rtol=1e-5, atol=1e-5)


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
        y = layer(tokens(33).requires_grad_())
    (y.float().sum() + layer.auxiliary_loss(torch.ones(2)).sum()).backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def yaml_values(name: str) -> dict:
    """The values of configs/attention/<name>.yaml, over those of the file that its defaults name. Hydra composes it in
    tests/configs, which takes a hundred times as long."""
    values = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"attention/{name}.yaml"))
    base, *rest = values.pop("defaults", [None, "_self_"])
    assert rest == ["_self_"]
    return (yaml_values(base) if base else {}) | values


@pytest.mark.parametrize("name", OWN)
def test_yaml_holds_exactly_the_knobs_with_their_defaults(name):
    values = yaml_values(name)
    assert values.pop("name") == name
    knobs = attention.knobs(name)
    assert values == {n: p.default for n, p in knobs.items()}
    assert all(p.annotation is not inspect.Parameter.empty for p in knobs.values())


@pytest.mark.parametrize("name", OWN)
def test_the_first_line_of_its_yaml_names_the_file_of_its_class(name):
    file = Path(inspect.getfile(attention.mechanism(name))).relative_to(REPOSITORY)
    assert (CONFIGS / f"attention/{name}.yaml").read_text().splitlines()[0] == f"# {file}"


def test_every_yaml_is_registered():
    assert sorted(p.stem for p in (CONFIGS / "attention").glob("*.yaml")) == OWN


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


def test_a_refusing_mechanism_names_its_reason_and_one_that_can(monkeypatch):
    monkeypatch.setattr(attention.mechanism("fourier"), "causal_ok", "it mixes future tokens")
    with pytest.raises(SetupError, match=r"it mixes future tokens. \d+ others can, for example softmax"):
        attention.build("fourier", Geometry(dim=32, heads=4, length=33, causal=True))


@pytest.mark.parametrize(("name", "knob", "hint"), [("fourierr", None, "'fourier'"), ("fourier", "powr", "'power'")])
def test_unknown_names_and_knobs_suggest_the_nearest(name, knob, hint):
    with pytest.raises(SetupError, match=hint):
        attention.build(name, Geometry(dim=32, heads=4, length=33, causal=True), **({knob: 1} if knob else {}))


# -- padding -----------------------------------------------------------------------------------------------------------
