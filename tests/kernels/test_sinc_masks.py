"""Masks of pairs, dropout and grouped heads, against loops and limits in float64; and what traces them."""

import math

import pytest
import torch
from torch import nn

from fourierformer import fourier_attention
from fourierformer.kernels.sinc.portable import full_precision

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 5, 7, 3
EPS = 1e-3
OF_KEYS = torch.ones(BATCH, 1, 1, KEYS, dtype=torch.bool)


def leaves():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = (normal(BATCH, HEADS, tokens, width) for tokens, width in ((QUERIES, 3), (KEYS, 3), (KEYS, 2)))
    return q, k, v, normal(HEADS, WIDTH), normal(1, HEADS, QUERIES, KEYS)


def loop(q, k, v, radius, factor):
    """y_i = sum_j f_ij w_ij v_j / (eps + sum_j f_ij w_ij), one number after the other."""
    output = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])):
        total = EPS
        for j in range(k.shape[2]):
            z = (radius[h] * (q[b, h, i] - k[b, h, j])).tolist()
            weight = math.prod(math.sin(x) / x for x in z) ** 4 * factor.expand(BATCH, HEADS, QUERIES, KEYS)[b, h, i, j]
            output[b, h, i] += weight * v[b, h, j]
            total += weight
        output[b, h, i] /= total
    return output


def masked(*tensors):
    return fourier_attention(*tensors[:4], eps=EPS, attn_mask=tensors[4])


def test_masks_of_pairs_equal_a_loop():
    *tensors, added = leaves()
    with torch.no_grad():
        torch.testing.assert_close(masked(*tensors, added), loop(*tensors, added.exp()))
        for shape in ((QUERIES, KEYS), (BATCH, 1, QUERIES, KEYS), (HEADS, 1, KEYS)):
            allowed = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
            torch.testing.assert_close(masked(*tensors, allowed), loop(*tensors, allowed.double()))
        nothing = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
        assert not masked(*tensors, nothing).any()


def test_gradients_through_a_mask_and_through_dropout():
    """The float mask's too: it may be a learned bias of positions."""
    tensors = leaves()
    assert torch.autograd.gradcheck(masked, tensors, fast_mode=True)

    def dropped(*arguments):
        torch.manual_seed(3)
        return fourier_attention(*arguments, eps=EPS, dropout_p=0.4, causal=True)

    assert torch.autograd.gradcheck(dropped, tensors[:4], fast_mode=True)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_where_nothing_is_to_compute_a_learned_mask_has_the_gradient_0(batch, queries, keys):
    q, k = torch.ones(batch, 4, queries, 3), torch.ones(batch, 4, keys, 3)
    learned = torch.ones(4, 1, 1, requires_grad=True)
    fourier_attention(q, k, k, 1.0, attn_mask=learned).sum().backward()
    assert learned.grad is not None
    assert not learned.grad.any()


def test_a_mask_of_keys_alone_is_keep_and_every_backend_has_it():
    q, k, v, radius, _ = leaves()
    keep = torch.tensor([[True] * KEYS, [True, False, True, True, False, True, True]])
    exact = fourier_attention(q, k, v, radius, keep=keep, backend="reference")
    torch.testing.assert_close(
        fourier_attention(q, k, v, radius, attn_mask=keep[:, None, None], backend="reference"), exact
    )
    torch.testing.assert_close(
        fourier_attention(q, k, v, radius, attn_mask=keep[:, None, None].expand(-1, -1, QUERIES, -1)), exact
    )


def test_dropout_leaves_out_the_share_it_promises_and_keeps_the_mean():
    """With values that name their key, the output is the row of weights: 0, or the weight / (1 - p)."""
    q, k, _, radius, _ = leaves()
    identity = torch.eye(KEYS, dtype=q.dtype).expand(BATCH, HEADS, -1, -1)
    with torch.no_grad():
        weights = fourier_attention(q, k, identity, radius)
        torch.manual_seed(0)
        draws = torch.stack([fourier_attention(q, k, identity, radius, dropout_p=0.25) for _ in range(200)])
    torch.testing.assert_close(draws.amax(0), weights / 0.75)
    assert (draws == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)  # sd of 56,000 draws: 0.002
    assert not torch.equal(draws[0], draws[1])
    assert not fourier_attention(q, k, identity, radius, dropout_p=1.0).any()


def test_calls_that_overlap_in_threads_compute_in_full_precision_and_restore_the_setting():
    cpu, matmul = torch.device("cpu"), torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "bf16"
        first, second = full_precision(cpu), full_precision(cpu)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert matmul.fp32_precision == "ieee"  # the second call is still computing
        second.__exit__(None, None, None)
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = before


def test_a_setting_that_was_inherited_stays_so():
    """Else a later change of the general setting would not reach the products any more."""
    general, matmul = torch.backends.fp32_precision, torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "none"
        torch.backends.fp32_precision = "tf32"
        inherited = matmul.fp32_precision
        with full_precision(torch.device("cpu")):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == inherited
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision, matmul.fp32_precision = general, before


def test_grouped_heads_are_repeated_heads():
    q, k, v, radius, _ = leaves()
    few_k, few_v = k[:, :2], v[:, :2]
    repeated = [torch.stack([x[:, h // 2] for h in range(HEADS)], 1) for x in (few_k, few_v)]
    exact = fourier_attention(q, *repeated, radius)
    torch.testing.assert_close(fourier_attention(q, few_k, few_v, radius, enable_gqa=True), exact)
    with pytest.raises(ValueError, match="a divisor of q's 4, got 3 and 3"):
        fourier_attention(q, k[:, :3], v[:, :3], radius, enable_gqa=True)
    with pytest.raises(ValueError, match=r"must be \(batch, heads, tokens, width\)"):
        fourier_attention(q[0], k[0], v[0], radius, enable_gqa=True)


class Module(nn.Module):
    def forward(self, *tensors):
        return masked(*tensors)


def test_it_compiles_exports_and_maps():
    tensors = [t.detach() for t in leaves()]
    exact = masked(*tensors)
    compiled = torch.compile(masked, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), exact)
    torch.testing.assert_close(torch.export.export(Module(), tuple(tensors)).module()(*tensors), exact)
    several = torch.stack([tensors[0], tensors[0] + 0.1])
    mapped = torch.vmap(masked, in_dims=(0, None, None, None, None))(several, *tensors[1:])
    torch.testing.assert_close(mapped, torch.stack([masked(q, *tensors[1:]) for q in several]))
    randomly = torch.compile(lambda q: fourier_attention(q, q, q, 1.0, dropout_p=0.5), fullgraph=True, backend="eager")
    assert randomly(tensors[0]).shape == tensors[0].shape


def test_torch_accepts_the_operators():
    q, k, v, radius, mask = leaves()
    scale = radius.detach().expand(BATCH, -1, -1).contiguous().requires_grad_()
    full = mask.detach().expand(BATCH, -1, -1, -1)
    keep = torch.ones(BATCH, KEYS, dtype=torch.bool)
    settings = (keep, full, torch.tensor(5), 4, EPS, True, 0.3)
    torch.library.opcheck(torch.ops.fourierformer.sinc_attention_portable, (q, k, v, scale, *settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.ones(3, KEYS)}, "broadcast to .* = .2, 4, 5, 7., got torch.float32 .3, 7."),
        ({"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.int)}, "must be bool or float"),
        ({"attn_mask": torch.ones(3, 1, 1, KEYS, dtype=torch.bool)}, "broadcast to .* = .2, 4, 5, 7., got torch.bool"),
        ({"attn_mask": OF_KEYS, "keep": torch.ones(BATCH, KEYS)}, "keep must be a bool tensor .* got torch.float32"),
        ({"attn_mask": OF_KEYS, "keep": torch.ones(3, KEYS, dtype=torch.bool)}, "got torch.bool .3, 7. with q"),
        ({"keep": torch.ones(BATCH, KEYS, dtype=torch.bool, device="meta")}, "q is on cpu but keep is on meta"),
        ({"dropout_p": 1.5}, "a probability, from 0 to 1, got 1.5"),
        ({"dropout_p": 0.5, "backend": "reference"}, "'reference' has neither attn_mask nor dropout: take 'auto'"),
    ],
)
def test_mistakes_are_explained(options, message):
    q, k, v, radius, _ = leaves()
    with pytest.raises(ValueError, match=message):
        fourier_attention(q, k, v, radius, **options)


def test_what_is_no_tensor_and_no_number_is_named():
    q, k, v, *_ = (leaf.detach() for leaf in leaves())
    for radius in ("matched", None):
        with pytest.raises(TypeError, match=f"radius must be a number or a tensor, got {radius!r}"):
            fourier_attention(q, k, v, radius)
    with pytest.raises(ValueError, match="radius must be a finite number, got nan"):
        fourier_attention(q, k, v, float("nan"))
    with pytest.raises(ValueError, match="eps must be a finite number"):
        fourier_attention(q, k, v, 0.4, eps="1e-6")
    with pytest.raises(TypeError, match="q must be a tensor, got ndarray"):
        fourier_attention(q.numpy(), k, v, 0.4)
    for name, tensors in {"k": (None, v), "v": (k, None)}.items():
        with pytest.raises(TypeError, match=f"{name} must be a tensor, got NoneType"):
            fourier_attention(q, *tensors, 0.4, enable_gqa=True, attn_mask=OF_KEYS)
    for name in ("keep", "attn_mask"):
        with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
            fourier_attention(q, k, v, 0.4, **{name: [True]})


@pytest.mark.parametrize("backend", ["auto", "portable"])
def test_forward_mode_is_refused_through_a_mask_and_inside_a_compiled_function(backend):
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    mask, radius = torch.zeros(5, 5, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)

    def of_mask(mask):
        return fourier_attention(q, k, v, radius, attn_mask=mask)

    def of_q(q):
        return torch.func.jvp(lambda q: fourier_attention(q, k, v, radius, backend=backend), (q,), (q,))[1]

    for call in (
        lambda: torch.func.jvp(of_mask, (mask,), (mask + 1,)),
        lambda: torch.compile(of_q, backend="eager")(q),
    ):
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            call()
    with pytest.raises(NotImplementedError, match=r"no derivative by torch\.func"):
        torch.func.grad(lambda mask: of_mask(mask).sum())(mask)
