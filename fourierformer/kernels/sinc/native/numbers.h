// Vectors of numbers, and the constants of float and double.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH_ROW(r) UNROLL for (int r = 0; r < ROWS; r++)

#if defined(__AVX512F__)
constexpr int REGISTER = 64;  // bytes of a vector
#elif defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif
constexpr int ROWS = 4;  // queries of a tile
constexpr double INVERSE_PI = 0.31830988618379067;

// The polynomials interpolate at the Chebyshev nodes of u in [0, 1/4]; their largest relative error is beside them.
// sine(0) is exactly 1, so that a key equal to its query has weight 1.
template <class S>
struct Real;
template <>
struct Real<float> {
  typedef int32_t Int;
  static constexpr int mantissa = 23, bias = 127;
  static constexpr float largest = 4e37f;
  static constexpr float sine[] = {1.0f, -1.644933997f, 0.8117335417f, -0.1905736753f, 0.02499996774f};  // 5e-8
  static constexpr float slope[] = {-3.289867586f, -2.164803716f, -2.027479556f,
                                    -2.126624052f, -1.150957f,    -4.596588501f};  // 2e-7
};
template <>
struct Real<double> {
  typedef int64_t Int;
  static constexpr int mantissa = 52, bias = 1023;
  static constexpr double largest = 4e307;
  static constexpr double sine[] = {
      1.0, -1.64493406684822643, 0.811742425283351942, -0.190751824121941279, 0.0261478478130788072,
      -0.00234608096349239961, 0.000148428178166936175, -6.97296055556422038e-6, 2.45918038481593938e-7};  // 1e-18
  static constexpr double slope[] = {
      -3.28986813369645249, -2.16464646742288256, -2.03468612381179851, -2.00815472838787774, -2.00198830342487914,
      -2.00051893660373395, -1.99957697297128167, -2.00753478955869765, -1.92862432590662136, -2.47309726335287258,
      0.163327172852152337, -8.60192298031711899, 10.4529695244184839,  -13.9372927458775831};  // 1e-16
};

template <class S>
struct Simd {
  typedef S V __attribute__((vector_size(REGISTER)));
  typedef typename Real<S>::Int I __attribute__((vector_size(REGISTER)));
  static constexpr int W = REGISTER / sizeof(S);
};
typedef Simd<float>::V Floats;
typedef Simd<double>::V Doubles;

template <class V, class S>
INLINE V all(S x) {
  return x - V{};
}
template <class V, class S>
INLINE V load(const S* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class S>
INLINE void store(S* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
// Adds halves until four numbers or fewer are left: in a chain of additions each waits for the one before.
template <class S, class V>
INLINE S sum(V x) {
  if constexpr (sizeof(V) > 16) {
    typedef S Half __attribute__((vector_size(sizeof(V) / 2)));
    Half half[2];
    std::memcpy(half, &x, sizeof x);
    return sum<S>(half[0] + half[1]);
  } else {
    S total = 0;
    for (unsigned i = 0; i < sizeof(V) / sizeof(S); i++) total += x[i];
    return total;
  }
}

template <class I>
INLINE bool any(const I& mask) {
  int64_t parts[sizeof(I) / 8], found = 0;
  std::memcpy(parts, &mask, sizeof mask);
  for (int64_t part : parts) found |= part;
  return found != 0;
}

// nearest: rounding to integers. estimate: 1 / x to 12 (AVX2) or 14 bits.
#if defined(__AVX512F__)
INLINE Floats nearest(Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, 0); }
INLINE Doubles nearest(Doubles x) { return (Doubles)_mm512_roundscale_pd((__m512d)x, 0); }
INLINE Floats estimate(Floats x) { return (Floats)_mm512_rcp14_ps((__m512)x); }
#elif defined(__AVX2__)
INLINE Floats nearest(Floats x) { return (Floats)_mm256_round_ps((__m256)x, 8); }
INLINE Doubles nearest(Doubles x) { return (Doubles)_mm256_round_pd((__m256d)x, 8); }
INLINE Floats estimate(Floats x) { return (Floats)_mm256_rcp_ps((__m256)x); }
#else
template <class V>
INLINE V nearest(V x) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(x[0]); i++) x[i] = std::nearbyint(x[i]);
  return x;
}
#endif

INLINE Doubles reciprocal(Doubles x) { return 1.0 / x; }
INLINE Floats reciprocal(Floats x) {
#if defined(__AVX2__)  // one Newton step: off by 1e-7, and much faster than a division
  Floats y = estimate(x);
  return y * (2.0f - x * y);
#else
  return 1.0f / x;
#endif
}

// |x|, bounded so that its reciprocal is a normal number.
template <class S, class V = typename Simd<S>::V>
INLINE V bounded(V x) {
  typedef typename Real<S>::Int Int;
  V size = (V)((typename Simd<S>::I)x & Int(~(uint64_t(1) << (sizeof(S) * 8 - 1))));
  V most = all<V>(Real<S>::largest);
  return size > most ? most : size;
}

// The coefficients as vectors in memory, which instructions take as operands: there are too few registers for them.
template <class S, int n>
struct Vectors {
  typename Simd<S>::V at[n];
  explicit Vectors(const S (&numbers)[n]) {
    for (int i = 0; i < n; i++) at[i] = all<typename Simd<S>::V>(numbers[i]);
  }
};
template <class S>
struct Coefficients {
  Vectors<S, sizeof Real<S>::sine / sizeof(S)> sine{Real<S>::sine};
  Vectors<S, sizeof Real<S>::slope / sizeof(S)> slope{Real<S>::slope};
};
template <class S>
const Coefficients<S> coefficients;

// values[r] = polynomial with the coefficients c at u[r].
template <class V, int n>
INLINE void polynomials(const V (&c)[n], const V (&u)[ROWS], V (&values)[ROWS]) {
  EACH_ROW(r) values[r] = c[n - 1];
  UNROLL
  for (int i = n - 2; i >= 0; i--) {
    EACH_ROW(r) values[r] = values[r] * u[r] + c[i];
  }
}

// Sets subnormal numbers to 0 in this thread while it lives: a processor takes many times longer for them.
struct TinyIsZero {
#if defined(__x86_64__)
  unsigned before = _mm_getcsr();
  TinyIsZero() { _mm_setcsr(before | 0x8040); }
  ~TinyIsZero() { _mm_setcsr(before); }
#elif defined(__aarch64__)
  uint64_t before;
  TinyIsZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" ::"r"(before | (uint64_t(1) << 24)));
  }
  ~TinyIsZero() { asm volatile("msr fpcr, %0" ::"r"(before)); }
#endif
};

// A token in half turns as coarse + fine: a multiple of 2^-13, and the rest as a multiple of a unit, even for queries
// and odd for keys. Differences of both are exact, so t and r have more digits than S and are never 0. From 1024 half
// turns on, coarse is all that S can hold.
template <class S>
void in_half_turns(const S* x, const S* radius, int64_t width, bool is_key, S* __restrict coarse, S* __restrict fine) {
  constexpr double grid = 1 << 13, unit = 1 / (double(int64_t(1) << Real<S>::mantissa) * grid * 2);  // 2^-37, 2^-66
  constexpr double most = Real<S>::largest;
  constexpr S finite = std::numeric_limits<S>::max();  // 0 times infinity is not 0
  const double parity = is_key ? unit : 0;
  for (int64_t d = 0; d < width; d++) {
    S held = x[d] > finite ? finite : x[d] < -finite ? -finite : x[d];
    double t = held * (radius[d] * INVERSE_PI);
    t = t > most ? most : t < -most ? -most : t;  // NaN stays
    bool near = std::fabs(t) < grid / 8;
    double on_grid = std::nearbyint(t * grid) / grid, rest = std::nearbyint((t - on_grid) / (2 * unit)) * (2 * unit);
    coarse[d] = (S)(near ? on_grid : t);
    fine[d] = (S)((near ? rest : 0) + parity);
  }
}
