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

// x: queries (D, 2, ROWS), coarse and fine; y: a panel of W keys (D, 2, W).
template <class S>
INLINE Weights<S> forward_tile(const S* x, const S* y, int D, int power) {
  typedef typename Simd<S>::V V;
  constexpr int W = Simd<S>::W;
  constexpr S scale = S(1ull << 63) * 2;  // start of both products, so that four numbers of 2^-37 do not underflow
  const Coefficients<S>* c = &coefficients<S>;
  asm("" : "+r"(c));  // hides the numbers, of which the compiler would make vectors in every round
  Weights<S> w = ones<S>();
  for (int group = 0; group < D; group += GROUP) {
    for (int begin = group; begin < D && begin < group + GROUP; begin += GROUP / 2) {
      V bottom[ROWS];
      EACH_ROW(r) w.mantissa[r] *= scale, bottom[r] = all<V>(scale);
      int end = begin + GROUP / 2 < D ? begin + GROUP / 2 : D;
      for (int d = begin; d < end; d++) {
        V key = load<V>(y + 2 * d * W), key_fine = load<V>(y + (2 * d + 1) * W), rest[ROWS], u[ROWS], sines[ROWS];
        EACH_ROW(r) {
          V coarse = x[2 * d * ROWS + r] - key, fine = x[(2 * d + 1) * ROWS + r] - key_fine;
          rest[r] = (coarse - nearest(coarse)) + fine;
          bottom[r] *= coarse + fine;
        }
        EACH_ROW(r) u[r] = rest[r] * rest[r];
        polynomials(c->sine.at, u, sines);
        EACH_ROW(r) w.mantissa[r] *= sines[r], w.mantissa[r] *= rest[r];
      }
      EACH_ROW(r) w.mantissa[r] *= reciprocal(bounded<S>(bottom[r]));
    }
    EACH_ROW(r) take_exponent<S>(w.mantissa[r], w.exponent[r]);
  }
  raise_to_power(w, power);
  return w;
}

// The same, and d/dt log sinc(pi t) to slopes (D, ROWS). r / t is r^2 / (r t), because 1 / (r t) is needed anyway.
template <class S>
INLINE Weights<S> backward_tile(const S* x, const S* y, int D, int power, typename Simd<S>::V* slopes) {
  typedef typename Simd<S>::V V;
  constexpr int W = Simd<S>::W;
  const Coefficients<S>* c = &coefficients<S>;
  asm("" : "+r"(c));
  Weights<S> w = ones<S>();
  for (int begin = 0; begin < D; begin += GROUP) {
    int end = begin + GROUP < D ? begin + GROUP : D;
    for (int d = begin; d < end; d++) {
      V key = load<V>(y + 2 * d * W), key_fine = load<V>(y + (2 * d + 1) * W);
      V n[ROWS], rest[ROWS], u[ROWS], inverse[ROWS], values[ROWS];
      EACH_ROW(r) {
        V coarse = x[2 * d * ROWS + r] - key, fine = x[(2 * d + 1) * ROWS + r] - key_fine;
        n[r] = nearest(coarse), rest[r] = (coarse - n[r]) + fine, u[r] = rest[r] * rest[r];
        inverse[r] = rest[r] * (coarse + fine);
      }
      EACH_ROW(r) inverse[r] = reciprocal(inverse[r]);
      polynomials(c->slope.at, u, values);
      EACH_ROW(r) slopes[d * ROWS + r] = values[r] * rest[r] + n[r] * inverse[r];
      polynomials(c->sine.at, u, values);
      EACH_ROW(r) w.mantissa[r] *= values[r] * (u[r] * inverse[r]);
    }
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
