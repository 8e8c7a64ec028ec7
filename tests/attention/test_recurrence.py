"""All forms of linear attention against the printed formula, written with plain loops in float64."""

import pytest
import torch
import torch.nn.functional as F

from fourierformer.attention.engines.recurrence import linear_attention, linear_maps, linear_start, linear_step
from tests.helpers.linear_cases import assert_same

BATCH, HEADS, FEATURES, WIDTH = 2, 3, 5, 4
LENGTHS = [1, 64, 65, 150]  # around one chunk, and several
CASES = {
    "plain": {},
    "eps": {"eps": 0.3},
    "key_weight": {"key_weight": True},
    "gate": {"log_decay": True},
    "gate_key_weight_floor": {"log_decay": True, "key_weight": True, "floor": 1.3},
    "floor": {"floor": 1.3},  # the mean weight is 5/4: half of the rows are cut
    "key_weight_floor_eps": {"key_weight": True, "floor": 1.3, "eps": 0.1},
}


def drawn(n: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"fq": (n, FEATURES), "fk": (n, FEATURES), "v": (n, WIDTH), "key_weight": (n,), "log_decay": (n,)}
    data = {
        name: torch.rand(BATCH, HEADS, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    data["log_decay"] = F.logsigmoid(4 * data["log_decay"])
    return data


def options_of(case: str, data: dict[str, torch.Tensor]) -> dict:
    return {name: data[name] if value is True else value for name, value in CASES[case].items()}


def formula(fq, fk, v, *, causal, log_decay=None, key_weight=None, floor=0.0, eps=0.0):
    """o_i = sum_j w_ij v_j / max(sum_j w_ij + eps, floor visible_i), query by query, gates multiplied one by one."""
    queries, keys = fq.shape[2], fk.shape[2]
    key_weight = torch.ones_like(fk[..., 0]) if key_weight is None else key_weight
    gate = torch.ones_like(key_weight) if log_decay is None else log_decay.exp()
    faded, rows = key_weight[..., :0], []  # the weight that each key has now; bidirectional: no gate, all keys
    for i in range(keys):
        faded = torch.cat([faded * gate[..., i : i + 1], key_weight[..., i : i + 1]], -1) if causal else key_weight
        if i < keys - queries:
            continue
        seen = faded.shape[-1]
        weights = faded * (fq[:, :, i - keys + queries, None] * fk[:, :, :seen]).sum(-1)
        total = (weights.sum(-1) + eps).maximum(floor * faded.sum(-1))
        rows.append((weights[..., None] * v[:, :, :seen]).sum(2) / total[..., None])
    return torch.stack(rows, 2)


def stepped(data, options):
    state = linear_start(torch.empty(0, dtype=torch.float64), BATCH, HEADS, FEATURES, WIDTH)
    out = []
    for t in range(data["v"].shape[2]):
        now = {k: o[..., t : t + 1] if isinstance(o, torch.Tensor) else o for k, o in options.items()}
        inputs = (data[name][:, :, t : t + 1] for name in ("fq", "fk", "v"))
        mixed, state = linear_step(*inputs, state, **now)
        out.append(mixed)
    return torch.cat(out, 2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", LENGTHS)
def test_causal_forms_are_the_formula(case, n):
    data = drawn(n)
    options = options_of(case, data)
    fq, fk, v = data["fq"], data["fk"], data["v"]
    expected = formula(fq, fk, v, causal=True, **options)
    for form in ("auto", "parallel", "chunk"):
        assert_same(linear_attention(fq, fk, v, causal=True, form=form, **options), expected)
    assert_same(linear_maps(fq, fk, causal=True, **options) @ v, expected)
    assert_same(stepped(data, options), expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("queries", [1, 40, 149])
def test_fewer_queries_are_the_last_ones(case, queries):
    data = drawn(150)
    options = options_of(case, data)
    fq, fk, v = data["fq"][:, :, -queries:], data["fk"], data["v"]
    expected = formula(fq, fk, v, causal=True, **options)
    for form in ("parallel", "chunk"):
        assert_same(linear_attention(fq, fk, v, causal=True, form=form, **options), expected)
    assert_same(linear_maps(fq, fk, causal=True, **options) @ v, expected)


@pytest.mark.parametrize("case", [c for c, options in CASES.items() if "log_decay" not in options])
@pytest.mark.parametrize("queries", [1, 70])
def test_bidirectional_forms_are_the_formula(case, queries):
    data = drawn(70)
    options = options_of(case, data)
    fq, fk, v = data["fq"][:, :, -queries:], data["fk"], data["v"]
    expected = formula(fq, fk, v, causal=False, **options)
    for form in ("auto", "parallel", "chunk"):
        assert_same(linear_attention(fq, fk, v, causal=False, form=form, **options), expected)
    assert_same(linear_maps(fq, fk, causal=False, **options) @ v, expected)


@pytest.mark.parametrize(
    ("case", "causal"), [(c, True) for c in CASES] + [(c, False) for c in CASES if "log_decay" not in CASES[c]]
)
@pytest.mark.parametrize("form", ["auto", "parallel", "chunk"])
def test_keys_left_out_are_as_if_they_were_not_there(case, causal, form):
    """They add no weight and fade no other key; queries there see the keys before. Sequence 1 starts at token 70."""
    data = drawn(150)
    keep = torch.rand(BATCH, 150, generator=torch.Generator().manual_seed(1)) < 0.5
    keep[1, :70] = False
    out = linear_attention(
        data["fq"], data["fk"], data["v"], causal=causal, form=form, keep=keep, **options_of(case, data)
    )
    for row in range(BATCH):
        alone = {name: t[row : row + 1, :, keep[row]] for name, t in data.items()}
        expected = formula(alone["fq"], alone["fk"], alone["v"], causal=causal, **options_of(case, alone))
        assert_same(out[row : row + 1, :, keep[row]], expected)
    assert not out[1, :, : 70 if causal else 0].any()
    without_keys = linear_attention(
        data["fq"], data["fk"], data["v"], causal=causal, form=form, keep=keep & False, **options_of(case, data)
    )
    assert not without_keys.any()


@pytest.mark.parametrize("case", [c for c, options in CASES.items() if "log_decay" not in options])
@pytest.mark.parametrize("queries", [3, 90])
def test_bidirectional_queries_may_be_more_than_keys(case, queries):
    data, more = drawn(20), drawn(queries, seed=1)
    options = options_of(case, data)
    actual = linear_attention(more["fq"], data["fk"], data["v"], causal=False, **options)
    for i in range(queries):
        one = formula(more["fq"][:, :, i : i + 1], data["fk"], data["v"], causal=False, **options)
        assert_same(actual[:, :, i : i + 1], one)


@pytest.mark.parametrize("case", CASES)
def test_both_forms_have_the_same_gradients(case):
    data = {name: t.requires_grad_() for name, t in drawn(150).items()}
    options = options_of(case, data)
    inputs = [data["fq"], data["fk"], data["v"]] + [o for o in options.values() if isinstance(o, torch.Tensor)]
    gradients = []
    for form in ("parallel", "chunk"):
        out = linear_attention(*inputs[:3], causal=True, form=form, **options)
        gradients.append(torch.autograd.grad(out.square().sum(), inputs))
    for parallel, chunk in zip(*gradients, strict=True):
        assert_same(chunk, parallel)


def test_a_gate_of_1_minus_1_over_t_is_the_plain_mean():
    """S_t = (1 - 1/t) S_{t-1} + (1/t) phi_t v_t is sum/t: t cancels in the ratio."""
    data = drawn(150)
    t = torch.arange(1, 151, dtype=torch.float64).expand(BATCH, HEADS, -1)
    gate = {"log_decay": torch.log(1 - 1 / t).clamp_min(-700), "key_weight": 1 / t}
    inputs = [data["fq"], data["fk"], data["v"]]
    for form in ("parallel", "chunk"):
        assert_same(linear_attention(*inputs, causal=True, form=form, **gate), linear_attention(*inputs, causal=True))


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_a_gate_that_forgets_everything_leaves_the_token_itself(form):
    fq, fk, v = (drawn(150)[name].float().requires_grad_() for name in ("fq", "fk", "v"))
    decay = torch.full((BATCH, HEADS, 150), -1e4)
    out = linear_attention(fq, fk, v, causal=True, form=form, log_decay=decay)
    torch.testing.assert_close(out, v)
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (fq, fk, v))


def test_a_gate_needs_a_past():
    data = drawn(4)
    with pytest.raises(ValueError, match="causal"):
        linear_attention(data["fq"], data["fk"], data["v"], causal=False, log_decay=data["log_decay"])


@pytest.mark.parametrize("form", ["parallel", "chunk"])
def test_low_precision_is_added_up_in_float32(form):
    """Ones in bfloat16: a sum of bfloat16 would stop at 256, where 256 + 1 = 256."""
    ones = torch.ones(1, 1, 1024, 1, dtype=torch.bfloat16)
    v = torch.linspace(0, 1, 1024)[None, None, :, None].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear_attention(ones, ones, v, causal=True, form=form)
    assert out.dtype == torch.bfloat16
    count = torch.arange(1, 1025)[:, None]
    torch.testing.assert_close(out[0, 0].float(), v[0, 0].float().cumsum(0) / count, rtol=2**-8, atol=0)


def kept_for_backward(n: int, gated: bool) -> int:
    """Numbers that autograd keeps of one sequence with M = D = 32."""
    fq, fk, v = (torch.rand(1, 1, n, 32, requires_grad=True) for _ in range(3))
    decay = F.logsigmoid(torch.rand(1, 1, n)) if gated else None
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes() // 4, tensor)  # the tensor too: its address stays taken
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        linear_attention(fq, fk, v, causal=True, form="chunk", log_decay=decay, floor=0.1)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("gated", [False, True])
def test_memory_of_chunks_is_linear_in_the_tokens(gated):
    """Per token: inputs, 64 weights inside the chunk, and 32 x 33 / 64 numbers of a state. One state per token alone
    would be 32 x 33 = 1056."""
    short, long = kept_for_backward(1024, gated), kept_for_backward(4096, gated)
    assert long == pytest.approx(4 * short, rel=0.01)
    assert long / 4096 < 1056 / 2
