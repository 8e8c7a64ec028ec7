"""The accuracy rule on a tensor core: by an emulation of its arithmetic, which Triton's interpreter does not have."""

import numpy as np
import pytest
import torch

from fourierformer.kernels.sinc.reference import sinc_attention_reference
from tests.helpers.sinc_cases import (
    NAMES,
    PRECISIONS,
    allowed,
    error,
    needs_fused,
    quiet_interpreter,
    run,
    run_fused,
    take_passes,
)
from tests.helpers.tensor_cores import AMPERE, EXACT, HOPPER, attention, cut_to_tf32, round_to_tf32

TOKENS = 64
SECONDS = pytest.mark.full("takes seconds")
CASES = [  # width, radius, deviation of q and k, mean of v
    (16, 0.43, 0.23, 1.0),
    (16, 2.0, 1.0, 0.0),
    *(
        pytest.param(numbers, marks=SECONDS)
        for numbers in (
            (16, 0.43, 0.23, 0.0),
            (16, 2.0, 0.25, 0.3),
            (64, 0.3, 0.25, 1.0),
            (64, 0.43, 0.23, 0.0),
            (64, 2.0, 0.5, 0.0),
            (128, 0.3, 0.2, 0.5),
        )
    ),
]


def case(width, radius, deviation, mean, tokens=TOKENS):
    """q, k, v, radius and dout; values of deviation 0.1 about a mean, or of deviation 1 without one."""
    random = np.random.default_rng(width)
    q, k, v, dout = (random.standard_normal((tokens, width)).astype(np.float32) for _ in range(4))
    return q * np.float32(deviation), k * np.float32(deviation), (v * (0.1 if mean else 1) + mean).astype("f4"), dout


def as_tensors(q, k, v, radius):
    full = torch.full((1, q.shape[1]), radius, dtype=torch.float64)
    return [*(torch.from_numpy(x)[None, None].double() for x in (q, k, v)), full]


def test_tf32_has_ten_bits_cut_or_to_nearest():
    x = np.float32([1 + 2**-11, 1 + 2**-10, 1 + 3 * 2**-11, -1 - 2**-11, 0, 1e-40, np.inf])
    assert cut_to_tf32(x[:4]).tolist() == [1, 1 + 2**-10, 1 + 2**-10, -1]
    assert round_to_tf32(x[:4]).tolist() == [1 + 2**-10, 1 + 2**-10, 1 + 2 * 2**-10, -1 - 2**-10]
    assert round_to_tf32(x[4:]).tolist()[::2] == [0, np.inf]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("unit", [HOPPER, AMPERE], ids=lambda unit: unit.name)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("numbers", CASES, ids=str)
def test_the_rule_holds_on_a_unit_that_cuts(numbers, precision, unit, passes):
    q, k, v, dout = case(*numbers)
    radius = numbers[1]
    tensors, doutput = as_tensors(q, k, v, radius), torch.from_numpy(dout)[None, None].double()
    truth = run(sinc_attention_reference, tensors, doutput, power=4, eps=0.0, causal=False)
    bounds = allowed(tensors, doutput, precision, power=4, eps=0.0, causal=False)
    results = attention(q, k, v, np.float32(radius), dout, precision == "highest", unit, passes=passes)
    for name, ours, exact, bound in zip(NAMES, results, truth, bounds, strict=False):
        assert error(torch.from_numpy(ours), exact[0, 0]) <= bound, name


def test_half_mode_is_better_than_bfloat16_inputs_where_values_have_a_mean():
    """The mean cancels in dq, and is most of the output: cutting values instead of rounding them breaks both bounds."""
    width, radius = 16, 0.43
    q, k, v, dout = case(width, radius, 0.23, 1.0, tokens=128)
    tensors, doutput = as_tensors(q, k, v, radius), torch.from_numpy(dout)[None, None].double()
    options = {"power": 4, "eps": 0.0, "causal": False}
    truth = run(sinc_attention_reference, tensors, doutput, **options)
    *qkv, rough_dout = [t.bfloat16().double() for t in (*tensors[:3], doutput)]
    rough = run(sinc_attention_reference, [*qkv, tensors[3]], rough_dout, **options)
    results = attention(q, k, v, np.float32(radius), dout, False, HOPPER)
    for ours, theirs, exact in list(zip(results, rough, truth, strict=False))[:2]:
        assert error(torch.from_numpy(ours), exact[0, 0]) < 0.5 * error(theirs, exact)


@needs_fused
@quiet_interpreter
@pytest.mark.parametrize(
    ("precision", "passes"),
    [
        *(("highest", 1), ("high", 2)),
        *(pytest.param(*case, marks=SECONDS) for case in (("highest", 2), ("high", 1))),
    ],
)
@pytest.mark.parametrize("numbers", [(8, 0.43, 0.23, 1.0)], ids=str)
def test_the_emulation_computes_what_the_kernel_computes(numbers, precision, passes, monkeypatch):
    """With exact sums, as the interpreter has them. In half mode both are 20 times as far from the truth.

    The interpreter does not cut operands: of those of dv the kernel leaves it to the tensor core.
    """
    q, k, v, dout = case(*numbers, tokens=16)
    emulated = attention(q, k, v, np.float32(numbers[1]), dout, precision == "highest", EXACT, passes=passes)
    take_passes(passes, monkeypatch)
    tensors, doutput = as_tensors(q, k, v, numbers[1]), torch.from_numpy(dout)[None, None].double()
    kernel = run_fused(tensors, doutput, precision)
    truth = run(sinc_attention_reference, tensors, doutput, power=4, eps=0.0, causal=False)
    for name, ours, theirs, exact in zip(NAMES, kernel, emulated, truth, strict=False):
        between = (ours.double() - torch.from_numpy(theirs)[None, None]).norm() / exact.norm()
        assert between < (5e-4 if (name, precision) == ("dv", "high") else 2e-5), name
        if precision == "high" and name != "output":
            assert error(ours, exact) > 3e-4, name
