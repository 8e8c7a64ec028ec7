"""The delta rule against its recurrence, and the fast weight memory built on it."""

import math

import pytest
import torch

from fourierformer import attention
from fourierformer.attention import Geometry
from fourierformer.attention.engines.delta_rule import delta_rule, delta_step
from fourierformer.attention.engines.features import elu_features
from fourierformer.attention.mechanisms.delta import FastWeight
from fourierformer.attention.mechanisms.dpfp import dpfp_features
from fourierformer.errors import SetupError
from tests.helpers.one_by_one import one_by_one

FEATURES = ["dpfp", "elu", "performer"]
GATED = pytest.mark.parametrize("gated", [False, True])


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(tokens: int, features: int = 12, width: int = 5) -> tuple[torch.Tensor, ...]:
    """fq, fk, v, beta as a layer makes them: features that are positive and sum to 1, rates between 0 and 1."""
    fq, fk = (normal(2, 3, tokens, features, seed=s).softmax(-1) for s in (1, 2))
    return fq, fk, normal(2, 3, tokens, width, seed=3), normal(2, 3, tokens, seed=4).sigmoid()


def gates(tokens: int) -> torch.Tensor:
    """log_decay: half of the tokens keep nearly all, some forget nearly all."""
    return -(4 * normal(2, 3, tokens, seed=6)).exp()


def recurrence(
    fq: torch.Tensor, fk: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor | None = None
) -> torch.Tensor:
    """The formula as printed: v-bar is what the memory holds for the key, and the difference is written."""
    memory = torch.zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1], dtype=v.dtype)
    outputs = []
    for t in range(v.shape[2]):
        if log_decay is not None:
            memory = log_decay[:, :, t, None, None].exp() * memory
        held = torch.einsum("bhmd,bhm->bhd", memory, fk[:, :, t])
        memory = memory + torch.einsum("bh,bhm,bhd->bhmd", beta[:, :, t], fk[:, :, t], v[:, :, t] - held)
        outputs.append(torch.einsum("bhmd,bhm->bhd", memory, fq[:, :, t]))
    return torch.stack(outputs, dim=2)


def layer(causal: bool = True, dtype: torch.dtype = torch.float64, **knobs) -> FastWeight:
    torch.manual_seed(0)
    return attention.build("fast_weight", Geometry(dim=16, heads=2, length=1024, causal=causal), **knobs).to(dtype)


# -- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["auto", "parallel", "chunk"])
@pytest.mark.parametrize("tokens", [1, 5, 32, 33, 64, 65, 200])
@GATED
def test_both_forms_are_the_recurrence(form, tokens, gated):
    arguments, log_decay = inputs(tokens), gates(tokens) if gated else None
    mixed = delta_rule(*arguments, log_decay=log_decay, form=form)
    torch.testing.assert_close(mixed, recurrence(*arguments, log_decay), rtol=0, atol=1e-10)


@GATED
def test_steps_are_the_recurrence(gated):
    arguments, log_decay = inputs(30), gates(30) if gated else None
    state, outputs = (torch.zeros(2, 3, 12, 5, dtype=torch.float64),), []
    for t in range(30):
        now = None if log_decay is None else log_decay[:, :, t : t + 1]
        output, state = delta_step(*(a[:, :, t : t + 1] for a in arguments), state, log_decay=now)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=2), recurrence(*arguments, log_decay), rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
@GATED
def test_gradients_are_those_of_the_recurrence(form, gated):
    weights = normal(2, 3, 70, 5, seed=5)
    gradients = []
    for function in (recurrence, lambda q, k, v, b, g=None: delta_rule(q, k, v, b, log_decay=g, form=form)):
        arguments = [a.requires_grad_() for a in (*inputs(70), *([gates(70)] if gated else []))]
        gradients.append(torch.autograd.grad((weights * function(*arguments)).sum(), arguments))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_a_gate_that_keeps_all_is_no_gate_and_one_that_keeps_nothing_leaves_the_token_itself(form):
    fq, fk, v, beta = inputs(100)
    kept = delta_rule(fq, fk, v, beta, log_decay=torch.zeros_like(beta), form=form)
    torch.testing.assert_close(kept, delta_rule(fq, fk, v, beta, form=form), rtol=0, atol=1e-14)
    forgotten = delta_rule(fq, fk, v, beta, log_decay=torch.full_like(beta, -1e4), form=form)
    own = (beta * (fq * fk).sum(-1))[..., None] * v
    torch.testing.assert_close(forgotten, own, rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_orthonormal_keys_at_full_rate_give_back_what_was_written(form):
    """Read with its own key, every value comes back; read later with all keys, still."""
    v, beta = normal(1, 1, 100, 5), torch.ones(1, 1, 100, dtype=torch.float64)
    unit = torch.eye(100, dtype=torch.float64)[None, None]
    assert torch.equal(delta_rule(unit, unit, v, beta, form=form), v)
    keys = torch.linalg.qr(normal(100, 100))[0][None, None]
    torch.testing.assert_close(delta_rule(keys, keys, v, beta, form=form), v, rtol=0, atol=1e-12)
    first = keys[:, :, :1].expand_as(keys)
    torch.testing.assert_close(
        delta_rule(first, keys, v, beta, form=form), v[:, :, :1].expand_as(v), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("form", ["parallel", "chunk"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_a_key_written_again_fades_what_it_held(form, rate):
    """One key of norm 1: o_t = (1 - beta) o_(t-1) + beta v_t. At 1 the last value, at 0 nothing."""
    key = torch.nn.functional.normalize(normal(6), dim=0).expand(1, 1, 150, 6)
    v = normal(1, 1, 150, 5)
    expected, held = [], torch.zeros(5, dtype=torch.float64)
    for value in v[0, 0]:
        held = (1 - rate) * held + rate * value
        expected.append(held)
    mixed = delta_rule(key, key, v, torch.full((1, 1, 150), rate, dtype=torch.float64), form=form)
    torch.testing.assert_close(mixed[0, 0], torch.stack(expected), rtol=0, atol=1e-12)


@GATED
def test_float32_stays_near_float64_over_a_thousand_tokens(gated):
    arguments, log_decay = inputs(1000), gates(1000) if gated else None
    expected = recurrence(*arguments, log_decay)
    for form in ("parallel", "chunk"):
        gate = None if log_decay is None else log_decay.float()
        mixed = delta_rule(*(a.float() for a in arguments), log_decay=gate, form=form)
        torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=1e-5)


# -- the layer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_the_layer_is_the_recurrence_over_its_features(feature, form):
    mechanism, x = layer(feature=feature, form=form), normal(2, 70, 16)
    q, k, v = mechanism.project(x)
    if feature == "performer":
        fq, fk = (
            (t / 8**0.25 @ mechanism.frequencies.T - t.square().sum(-1, keepdim=True) / 2 / 8**0.5).exp()
            for t in (q, k)
        )
        fq, fk = (f / f.sum(-1, keepdim=True) for f in (fq, fk))
    else:
        fq, fk = (dpfp_features(t, 3) if feature == "dpfp" else elu_features(t) for t in (q, k))
        fq, fk = (f / (f.sum(-1, keepdim=True) + 1e-5) for f in (fq, fk))
    rates = (x @ mechanism.beta.weight.T).sigmoid().transpose(1, 2)
    expected = recurrence(fq, fk, v, rates) / math.sqrt(8)
    torch.testing.assert_close(mechanism.mix(q, k, v, x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("feature", FEATURES)
def test_token_by_token_is_the_same(feature):
    mechanism, x = layer(feature=feature), normal(2, 20, 16, seed=3)
    assert mechanism.start(2)[0].shape[2] == {"dpfp": 48, "elu": 8, "performer": 16}[feature]  # 8 log 8 = 16.6
    torch.testing.assert_close(one_by_one(mechanism, x), mechanism(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_no_input_gives_a_division_by_zero_or_an_overflow(feature, scale):
    """At scale 0 all dpfp features are 0, and nothing is written."""
    mechanism = layer(dtype=torch.float32, feature=feature, form="chunk")
    q, k, v = (t.float().requires_grad_() for t in normal(3, 2, 2, 300, 8, seed=6))
    mixed = mechanism.mix(scale * q, scale * k, v, torch.ones(2, 300, 16))
    assert mixed.isfinite().all()
    mixed.square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    if feature == "dpfp" and scale == 0:
        assert (mixed == 0).all()


def test_random_features_depend_on_the_seed_and_the_layer():
    def frequencies(**where: int) -> torch.Tensor:
        geometry = Geometry(dim=16, heads=2, length=64, causal=True, **where)
        return attention.build("fast_weight", geometry, feature="performer").frequencies

    assert torch.equal(frequencies(), frequencies())
    assert not torch.equal(frequencies(), frequencies(layer=1))
    assert not torch.equal(frequencies(), frequencies(seed=1))


def test_images_have_no_order_to_write_in():
    with pytest.raises(SetupError, match="order of writing"):
        layer(causal=False)


def test_nu_is_checked_where_it_is_used():
    with pytest.raises(SetupError, match=r"attention\.nu"):
        layer(nu=8)
    assert layer(feature="elu", nu=8).features == 8
