// Discs in frequency instead of squares: the loop over coordinates, two at a time.
//
//     f(u) = 2 J1(x) / x     x = pi sqrt(u)     u = t_a^2 + t_b^2     t = R (q - k) / pi, in half turns
//
// J1 is the Bessel function, with f(u) = prod_k (1 - u / z_k) over its zeros. For u <= 4, with the first two apart,
//
//     f(u) = (z_1 - u) (z_2 - u) rest(u)
//     d/dt_a log f = 2 t_a [(z_1 - u) (z_2 - u) rest'(u) - (z_1 - u + z_2 - u) rest(u)] / f(u)
//
// with polynomials for rest and rest'. Beyond, which is rare while the kernel is wide, by an expansion at infinity in
// float, by the C library in double, one by one.
#pragma once
#include "tiles.h"

// The zeros as two numbers each, so that z - u is never 0. The polynomials interpolate at the Chebyshev nodes of u in
// [0, 4]; their largest error relative to `rest` is beside them.
template <class S>
struct Bessel;
template <>
struct Bessel<float> {
  static constexpr float zeros[2][2] = {{1.48759460f, 3.91698593e-8f}, {4.98687220f, 5.53652896e-8f}};
  static constexpr float rest[] = {0.1347991492f,   -0.04865547261f,  0.007753863427f, -0.000735966835f,
                                   4.726711633e-5f, -2.203013833e-6f, 7.584713754e-8f, -1.621116049e-9f};  // 9e-9
  static constexpr float change[] = {-0.04865547208f,  0.01550771579f,  -0.002207863773f, 0.0001890245296f,
                                     -1.099159307e-5f, 4.493563555e-7f, -1.082814009e-8f};  // 2e-8
};
template <>
struct Bessel<double> {
  static constexpr double zeros[2][2] = {{1.4875946436620469, -5.59827838914e-17},
                                         {4.986872251562799, 3.48443681142e-16}};
  static constexpr double rest[] = {
      0.134799149165702701,   -0.0486554726922347854, 0.00775386535631492145, -0.000735974583593452106,
      4.7278835420868977e-5,  -2.21150692765449219e-6, 7.90439646270782142e-8, -2.23473465687832479e-9,
      5.13026688144428208e-11, -9.76185338419275527e-13, 1.56283564331035568e-14, -2.09099392812417397e-16,
      1.98553312088312861e-18};  // 6e-18
  static constexpr double change[] = {
      -0.0486554726922347849, 0.01550773071262981,     -0.00220792375078000034, 0.000189115341681982488,
      -1.10575346350753815e-5, 4.74263783787257367e-7, -1.56431395286918379e-8, 4.10419833661363271e-10,
      -8.78518799414106966e-12, 1.56189486895138372e-13, -2.28970031746342084e-15, 2.3331710046225575e-17};  // 2e-17
};

constexpr double FAR = 4;  // u
constexpr double PI = 1 / INVERSE_PI;

template <class S>
struct BesselCoefficients {
  Vectors<S, sizeof Bessel<S>::rest / sizeof(S)> rest{Bessel<S>::rest};
  Vectors<S, sizeof Bessel<S>::change / sizeof(S)> change{Bessel<S>::change};
};
template <class S>
const BesselCoefficients<S> bessel_coefficients;

// sqrt(u) of a query and key i of a panel. In double: float has too few digits of its phase.
template <class S>
INLINE double distance(const S* query, const S* keys, int i) {
  constexpr int W = Simd<S>::W;
  constexpr double most = 1e150;  // whose square is finite
  double square = 0;
  for (int e = 0; e < 2; e++) {
    double t = ((double)query[2 * e * ROWS] - keys[2 * e * W + i]) +
               ((double)query[(2 * e + 1) * ROWS] - keys[(2 * e + 1) * W + i]);
    t = std::fabs(t) < most ? t : most;
    square += t * t;
  }
  return std::sqrt(square);
}

// Replaces f and d/du log f of one query by their values where u > FAR, from its two coordinates and those of a panel
// of keys.
static __attribute__((noinline)) void far_factors(const double* query, const double* keys, const Doubles& u,
                                                  Doubles& f, Doubles* slope) {
  for (int i = 0; i < Simd<double>::W; i++) {
    if (!(u[i] > FAR)) continue;
    double x = PI * distance(query, keys, i), j1 = ::j1(x);
    f[i] = 2 * j1 / x;
    if (slope) (*slope)[i] = j1 == 0 ? 0 : (::j0(x) / j1 - 2 / x) * PI * PI / (2 * x);
  }
}

// J0 = sqrt(2 / (pi x)) (p0 cos - q0 sin / x)     J1 = sqrt(2 / (pi x)) (p1 sin + q1 cos / x)     of x - pi / 4,
// with polynomials in 1 / x^2 for p and q, here for x >= 2 pi, and of cos(pi r) in r^2 for r in [-1/2, 1/2].
constexpr float P0[] = {0.99999999f, -0.07029969124f, 0.1094749081f, -0.3767388611f};
constexpr float Q0[] = {-0.1249999649f, 0.07319726497f, -0.2175968635f, 1.009222974f};
constexpr float P1[] = {1.000000012f, 0.1171727652f, -0.1411202399f, 0.4525291079f};
constexpr float Q1[] = {0.3749999602f, -0.1024881298f, 0.2668083266f, -1.182971954f};
constexpr float COSINE[] = {0.9999999998f, -4.934802137f, 4.058709155f, -1.335211949f, 0.2349370686f, -0.0243959321f};

template <class V, class S, int n>
INLINE V polynomial(const S (&c)[n], V u) {
  V value = all<V>(c[n - 1]);
  UNROLL
  for (int i = n - 2; i >= 0; i--) value = value * u + c[i];
  return value;
}

static __attribute__((noinline)) void far_factors(const float* query, const float* keys, const Floats& u, Floats& f,
                                                  Floats* slope) {
  constexpr int W = Simd<float>::W;
  float size[W], phase[W], root[W];
  for (int i = 0; i < W; i++) {
    double s = distance(query, keys, i), turns = s - 0.25;
    size[i] = (float)(PI * s), phase[i] = (float)(turns - std::nearbyint(turns));
  }
  Floats inverse = reciprocal(bounded<float>(load<Floats>(size))), y = inverse * inverse;
  for (int i = 0; i < W; i++) root[i] = std::sqrt(inverse[i]);
  Floats r = load<Floats>(phase), square = r * r;
  Floats sine = r * float(PI) * polynomial(Real<float>::sine, square), cosine = polynomial(COSINE, square);
  Floats j1 = polynomial(P1, y) * sine + polynomial(Q1, y) * inverse * cosine;
  f = u > float(FAR) ? j1 * inverse * load<Floats>(root) * 1.595769122f /* 2 sqrt(2 / pi) */ : f;
  if (!slope) return;
  Floats j0 = polynomial(P0, y) * cosine - polynomial(Q0, y) * inverse * sine;
  Floats found = (j0 * reciprocal(j1) - 2.0f * inverse) * float(PI * PI / 2) * inverse;
  found = f == 0.0f ? Floats{} : found;  // the weight is 0; times t, a slope without a phase may overflow
  *slope = u > float(FAR) ? found : *slope;
}

// As forward_tile, and where `with_slopes` as backward_tile. Not inlined: the loops for squares keep their registers.
template <class S, bool with_slopes>
__attribute__((noinline)) Weights<S> disc_tile(Tokens<S> queries, Tokens<S> keys, int D, int power,
                                               typename Simd<S>::V* slopes = nullptr) {
  const S *x = queries.at, *y = keys.at;
  typedef typename Simd<S>::V V;
  constexpr int W = Simd<S>::W;
  typedef Bessel<S> B;
  const BesselCoefficients<S>* c = &bessel_coefficients<S>;
  asm("" : "+r"(c));
  Weights<S> w = ones<S>();
  for (int begin = 0; begin < D; begin += GROUP) {
    int end = begin + GROUP < D ? begin + GROUP : D;
    for (int d = begin; d < end; d += 2) {
      V t[2][ROWS], u[ROWS], f[ROWS], rest[ROWS], change[ROWS], slope[ROWS];
      typename Simd<S>::I is_far[ROWS], any_far{};
      for (int e = 0; e < 2; e++) {
        const S* query = x + 2 * (d + e) * ROWS;
        V key = load<V>(y + 2 * (d + e) * W), key_fine = load<V>(y + (2 * (d + e) + 1) * W);
        EACH_ROW(r) t[e][r] = (query[r] - key) + (query[ROWS + r] - key_fine);
      }
      EACH_ROW(r) u[r] = t[0][r] * t[0][r] + t[1][r] * t[1][r], is_far[r] = u[r] > S(FAR), any_far |= is_far[r];
      polynomials(c->rest.at, u, rest);
      if constexpr (with_slopes) polynomials(c->change.at, u, change);
      EACH_ROW(r) {
        V first = (B::zeros[0][0] - u[r]) + B::zeros[0][1], second = (B::zeros[1][0] - u[r]) + B::zeros[1][1];
        f[r] = first * second * rest[r];
        if constexpr (with_slopes)
          slope[r] = (first * second * change[r] - (first + second) * rest[r]) * reciprocal(f[r]);
      }
      if (any(any_far))
        for (int r = 0; r < ROWS; r++)
          if (any(is_far[r]))
            far_factors(x + 2 * d * ROWS + r, y + 2 * d * W, u[r], f[r], with_slopes ? &slope[r] : nullptr);
      EACH_ROW(r) w.mantissa[r] *= f[r];
      if constexpr (with_slopes)
        for (int e = 0; e < 2; e++) EACH_ROW(r) slopes[(d + e) * ROWS + r] = 2 * t[e][r] * slope[r];
    }
    EACH_ROW(r) take_exponent<S>(w.mantissa[r], w.exponent[r]);
  }
  raise_to_power(w, power);
  return w;
}
