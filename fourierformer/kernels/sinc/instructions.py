"""Single instructions of a GPU for float32 numbers, in Triton: approximations by its special function unit, and TF32.

In Triton's interpreter they are the functions they approximate.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def log2(x):
    """lg2.approx: absolute error 2^-22. tl.log2 would expand to 15 instructions."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def exp2(x):
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def cut_to_tf32(x):
    """x without the digits that a tensor core cuts."""
    return (x.to(tl.int32, bitcast=True) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def round_to_tf32(x):
    """The nearest number of TF32. Five instructions, where a cut is one."""
    if INTERPRETED:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    bits = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def bounded_float16(x):
    """x in float16; the largest finite number where it is larger."""
    if INTERPRETED:
        return tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)
    convert: tl.constexpr = "cvt.rn.satfinite.f16x2.f32 $0, $2, $1;"
    return tl.inline_asm_elementwise(convert, "=r,f,f", [x], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def reciprocal(x):
    """rcp.approx: one unit in the last place."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def approximate_sine(x):
    """sin.approx: absolute error 2^-20.5 for |x| <= pi (PTX)."""
    if INTERPRETED:
        return tl.sin(x)
    return tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def approximate_cosine(x):
    """cos.approx: as `approximate_sine`."""
    if INTERPRETED:
        return tl.cos(x)
    return tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
