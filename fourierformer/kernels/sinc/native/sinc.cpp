// Fourier attention on a CPU, forward and backward, in float and double. library.py builds this file, compiled.py calls
// it, the README of the folder above has the derivations.
//
//     w_ij = prod_d sinc(R (q_id - k_jd))^power       y_i = sum_j w_ij v_j / (eps + sum_j w_ij)
//
// Angles are counted in half turns: t = R (q - k) / pi = x - y, with x = R q / pi and y = R k / pi once per token. With
// n the integer nearest to t and r = t - n in [-1/2, 1/2],
//
//     |sinc(pi t)|         = sine(r^2) |r / t|           sine(u)  = sin(pi r) / (pi r), a polynomial in u = r^2
//     d/dt log sinc(pi t)  = r slope(r^2) + n / (r t)    slope(u) = (pi cot(pi r) - 1 / r) / r, likewise
//
// Nothing cancels near t = 0, where n = 0 and r = t. No sine, no logarithm, no exponential: a weight is a mantissa
// and an exponent; its normalisation needs only differences of exponents. Nothing of size N x M is stored. Results do
// not depend on the number of threads, on other heads, or on keys that a query does not see.
#include "backward.h"
#include "forward.h"

template <class Pass>
int status(const Call* call) {  // 0, or 1 where memory ran out
  try {
    return Pass(*call).run() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

extern "C" {
int sinc_forward_float(const Call* call) { return status<Forward<float>>(call); }
int sinc_forward_double(const Call* call) { return status<Forward<double>>(call); }
int sinc_backward_float(const Call* call) { return status<Backward<float>>(call); }
int sinc_backward_double(const Call* call) { return status<Backward<double>>(call); }
}
