// The two loops over coordinates, which take nearly all the time: ROWS queries against one vector of keys. Every step
// runs over all rows before the next one, so that consecutive instructions are independent.
#pragma once
#include "numbers.h"

constexpr int GROUP = 8;  // coordinates after which the exponent is taken out of a product of factors
constexpr int ABSENT = 1 << 16;  // subtracted from the exponent for a factor of 0: more than all others together
constexpr int HIDDEN = -(1 << 30);

template <class S>
struct Weights {  // mantissa * 2^exponent, ROWS queries and a vector of keys
  typename Simd<S>::V mantissa[ROWS];
  typename Simd<S>::I exponent[ROWS];
};

template <class S>
INLINE void take_exponent(typename Simd<S>::V& mantissa, typename Simd<S>::I& exponent) {
  typedef typename Real<S>::Int Int;
  constexpr Int bias = Real<S>::bias, place = Real<S>::mantissa;
  auto bits = (typename Simd<S>::I)mantissa, biased = (bits >> place) & (2 * bias + 1);
  exponent += biased - bias - ((biased == 0) & ABSENT);
  mantissa = (typename Simd<S>::V)((bits & ((Int(1) << place) - 1)) | (bias << place));
}

template <class S>
INLINE void raise_to_power(Weights<S>& w, int power) {
  EACH_ROW(r) {
    w.exponent[r] *= typename Real<S>::Int(power);
    auto square = w.mantissa[r] * w.mantissa[r];  // below 4
    w.mantissa[r] = square;
    for (int p = 2; p < power; p += 2) {
      w.mantissa[r] *= square;
      if (p % 32 == 0) take_exponent<S>(w.mantissa[r], w.exponent[r]);
    }
  }
}

template <class S>
INLINE Weights<S> ones() {
  Weights<S> w;
  EACH_ROW(r) w.mantissa[r] = all<typename Simd<S>::V>(S(1)), w.exponent[r] = typename Simd<S>::I{};
  return w;
}

// Queries (D, 2, ROWS) or a panel of W keys (D, 2, W), coarse and fine, and the range of each coordinate over them:
// `padded(D)` lowest coarse numbers, then as many highest ones.
template <class S>
struct Tokens {
  const S *at, *range;
};

constexpr int64_t padded(int64_t width) { return (width + GROUP - 1) / GROUP * GROUP; }

// Whether |t| < 1/2 for all queries and keys in the GROUP coordinates from `group` on. Then n = 0 and r = t: every
// factor is sine(t^2), which takes half the instructions. The bits are the same, so that a result does not depend on
// the other rows of a tile or on hidden keys.
template <class S>
INLINE bool near(Tokens<S> x, Tokens<S> y, int group, int D) {
  typedef S Range __attribute__((vector_size(GROUP * sizeof(S))));
  const S *x_range = x.range + group, *y_range = y.range + group;
  Range above = load<Range>(x_range + padded(D)) - load<Range>(y_range);
  Range below = load<Range>(y_range + padded(D)) - load<Range>(x_range);
  return !any((above >= S(0.5)) | (below >= S(0.5)));
}

// Multiplies w by the factors of the coordinates from `begin` to `end`.
template <class S, bool is_near>
INLINE void multiply_factors(Tokens<S> x, Tokens<S> y, int begin, int end, Weights<S>& w, const Coefficients<S>* c) {
  typedef typename Simd<S>::V V;
  constexpr int W = Simd<S>::W;
  constexpr S scale = S(1ull << 63) * 2;  // start of both products, so that four numbers of 2^-37 do not underflow
  V top[ROWS], bottom[ROWS];
  EACH_ROW(r) top[r] = bottom[r] = all<V>(scale);
  for (int d = begin; d < end; d++) {
    V key = load<V>(y.at + 2 * d * W), key_fine = load<V>(y.at + (2 * d + 1) * W), rest[ROWS], u[ROWS], sines[ROWS];
    EACH_ROW(r) {
      V coarse = x.at[2 * d * ROWS + r] - key, fine = x.at[(2 * d + 1) * ROWS + r] - key_fine;
      rest[r] = (is_near ? coarse : coarse - nearest(coarse)) + fine;
      if constexpr (!is_near) top[r] *= rest[r], bottom[r] *= coarse + fine;
    }
    EACH_ROW(r) u[r] = rest[r] * rest[r];
    polynomials(c->sine.at, u, sines);
    EACH_ROW(r) w.mantissa[r] *= sines[r];
  }
  if constexpr (!is_near) {  // the quotient of equal products is 1, in every bit
    EACH_ROW(r) {
      V quotient = top[r] * reciprocal(bounded<S>(bottom[r]));
      w.mantissa[r] *= top[r] == bottom[r] ? all<V>(S(1)) : quotient;
    }
  }
}

template <class S>
INLINE Weights<S> forward_tile(Tokens<S> x, Tokens<S> y, int D, int power) {
  const Coefficients<S>* c = &coefficients<S>;
  asm("" : "+r"(c));  // hides the numbers, of which the compiler would make vectors in every round
  Weights<S> w = ones<S>();
  for (int group = 0; group < D; group += GROUP) {
    int end = group + GROUP < D ? group + GROUP : D, half = group + GROUP / 2 < D ? group + GROUP / 2 : D;
    if (near(x, y, group, D)) {
      multiply_factors<S, true>(x, y, group, end, w, c);
    } else {
      multiply_factors<S, false>(x, y, group, half, w, c);
      multiply_factors<S, false>(x, y, half, end, w, c);
    }
    EACH_ROW(r) take_exponent<S>(w.mantissa[r], w.exponent[r]);
  }
  raise_to_power(w, power);
  return w;
}

// As multiply_factors, and d/dt log sinc(pi t) to slopes (D, ROWS). r / t is r^2 / (r t), because 1 / (r t) is needed
// anyway.
template <class S, bool is_near>
INLINE void multiply_with_slopes(Tokens<S> x, Tokens<S> y, int begin, int end, Weights<S>& w,
                                 typename Simd<S>::V* slopes, const Coefficients<S>* c) {
  typedef typename Simd<S>::V V;
  constexpr int W = Simd<S>::W;
  for (int d = begin; d < end; d++) {
    V key = load<V>(y.at + 2 * d * W), key_fine = load<V>(y.at + (2 * d + 1) * W);
    V n[ROWS], rest[ROWS], u[ROWS], inverse[ROWS], values[ROWS];
    EACH_ROW(r) {
      V coarse = x.at[2 * d * ROWS + r] - key, fine = x.at[(2 * d + 1) * ROWS + r] - key_fine;
      if constexpr (is_near) {
        rest[r] = coarse + fine;
      } else {
        n[r] = nearest(coarse), rest[r] = (coarse - n[r]) + fine;
        inverse[r] = rest[r] * (coarse + fine);
      }
      u[r] = rest[r] * rest[r];
    }
    if constexpr (!is_near) {
      EACH_ROW(r) inverse[r] = reciprocal(inverse[r]);
    }
    polynomials(c->slope.at, u, values);
    EACH_ROW(r) {
      if constexpr (is_near)
        slopes[d * ROWS + r] = values[r] * rest[r];
      else
        slopes[d * ROWS + r] = values[r] * rest[r] + n[r] * inverse[r];
    }
    polynomials(c->sine.at, u, values);
    EACH_ROW(r) {
      if constexpr (!is_near) values[r] *= n[r] == V{} ? all<V>(S(1)) : u[r] * inverse[r];
      w.mantissa[r] *= values[r];
    }
  }
}

template <class S>
INLINE Weights<S> backward_tile(Tokens<S> x, Tokens<S> y, int D, int power, typename Simd<S>::V* slopes) {
  const Coefficients<S>* c = &coefficients<S>;
  asm("" : "+r"(c));
  Weights<S> w = ones<S>();
  for (int group = 0; group < D; group += GROUP) {
    int end = group + GROUP < D ? group + GROUP : D;
    if (near(x, y, group, D))
      multiply_with_slopes<S, true>(x, y, group, end, w, slopes, c);
    else
      multiply_with_slopes<S, false>(x, y, group, end, w, slopes, c);
    EACH_ROW(r) take_exponent<S>(w.mantissa[r], w.exponent[r]);
  }
  raise_to_power(w, power);
  return w;
}

// x 2^exponent for exponents up to 0; 0 where it underflows.
template <class S>
INLINE typename Simd<S>::V scaled(typename Simd<S>::V x, typename Simd<S>::I exponent) {
  typedef typename Real<S>::Int Int;
  constexpr Int bias = Real<S>::bias;
  exponent = (exponent > -bias ? exponent : typename Simd<S>::I{} - bias) + bias;
  return x * (typename Simd<S>::V)(exponent << Real<S>::mantissa);
}
