// The gradients. The weights are computed again, so that nothing of size N x M is stored.
#pragma once
#include "call.h"
#include "disc.h"
#include "tiles.h"

// P_ij = w_ij / (eps + sum_j w_ij), dS_ij = power P_ij (dy_i . v_j - dy_i . y_i), and with the slopes g_ijd of log sinc
//
//     dv_j = sum_i P_ij dy_i      dq_i = R / pi sum_j dS_ij g_ij      dk_j = - R / pi sum_i dS_ij g_ij
//     dR   = 1 / pi sum_ij dS_ij g_ij (q_i - k_j)
//
// A task is one head and every `parts`-th block of its keys, with all queries. So dk and dv have one writer; dq is the
// sum of the parts, whose number follows from the shapes alone.
template <class S>
struct Backward {
  typedef typename Simd<S>::V V;
  typedef typename Real<S>::Int Int;
  static constexpr int W = Simd<S>::W;
  static constexpr int64_t CACHED = 256 * 64;  // numbers of a block of keys: its four arrays fit the second-level cache
  static constexpr int64_t MOST_PARTS = 8, SCRATCH = 32 << 20;  // bytes for the parts of dq; one head at least
  const Call& call;
  int64_t block_keys, blocks, parts, heads_at_once;

  explicit Backward(const Call& call) : call(call) {
    int64_t widest = call.width > call.value_width ? call.width : call.value_width;
    block_keys = CACHED / (widest < 64 ? 64 : widest) / W * W;
    block_keys = block_keys < W ? W : block_keys;
    blocks = (call.keys + block_keys - 1) / block_keys;
    parts = blocks < MOST_PARTS ? blocks : MOST_PARTS;
    heads_at_once = call.batch * call.heads;
    int64_t fit = SCRATCH / (parts * call.queries * call.width * (int64_t)sizeof(S));
    if (parts > 1 && fit < heads_at_once) heads_at_once = fit < 1 ? 1 : fit;
  }

  bool run() const {
    int64_t heads = call.batch * call.heads, dq_size = parts * call.queries * call.width;
    Buffer<S> dq_parts(parts > 1 ? heads_at_once * dq_size : 1);
    std::vector<double> moments(heads * parts * call.width);
    for (int64_t first = 0; first < heads; first += heads_at_once) {
      int64_t some = heads - first < heads_at_once ? heads - first : heads_at_once;
      auto make = [&] { return Worker(*this, first, parts > 1 ? dq_parts.p : nullptr, moments.data()); };
      if (!parallel(call, some * parts, make)) return false;
      auto add = [&] { return [&](int64_t h) { add_parts(first + h, dq_parts + h * dq_size); }; };
      if (parts > 1 && !parallel(call, some, add)) return false;
    }
    for (int64_t h = 0; h < heads; h++)
      for (int64_t d = 0; d < call.width; d++) {
        double total = 0;
        for (int64_t part = 0; part < parts; part++) total += moments[(h * parts + part) * call.width + d];
        row<S>(call.dradius, h / call.heads, h % call.heads, 0)[d] = (S)(total * INVERSE_PI);
      }
    return true;
  }

  void add_parts(int64_t h, const S* from) const {
    for (int64_t i = 0; i < call.queries; i++) {
      S* out = row<S>(call.dq, h / call.heads, h % call.heads, i);
      for (int64_t d = 0; d < call.width; d++) {
        S total = 0;
        for (int64_t part = 0; part < parts; part++) total += from[(part * call.queries + i) * call.width + d];
        out[d] = total;
      }
    }
  }

  struct Worker {
    const Backward& plan;
    int64_t first_head;
    S* dq_parts;
    double* moments;  // (heads, parts, width): sums of (q - centre) sum_j dS g and (k - centre) sum_i dS g
    const Call& call = plan.call;
    int64_t sequence = 0;
    Kept kept{call, 0};
    Reader<S> read{call};
    bool any_unknown = false;  // a key or value of the block has a NaN
    Buffer<S> queries{call.width * 2 * ROWS}, doutputs{call.value_width * ROWS}, delta{call.queries};
    Buffer<S> query_range{2 * padded(call.width)}, key_ranges{plan.block_keys / W * 2 * padded(call.width)};
    Buffer<S> keys{plan.block_keys * call.width * 2}, values{plan.block_keys * call.value_width};
    Buffer<S> dkeys{plan.block_keys * call.width}, dvalues{plan.block_keys * call.value_width};
    Buffer<V> slopes{call.width * ROWS}, dqueries{call.width * ROWS};
    Worker(const Backward& plan, int64_t first_head, S* dq_parts, double* moments)
        : plan(plan), first_head(first_head), dq_parts(dq_parts), moments(moments) {}

    void operator()(int64_t task) {
      int64_t head = first_head + task / plan.parts, part = task % plan.parts, b = head / call.heads,
              h = head % call.heads;
      double* moment = moments + (head * plan.parts + part) * call.width;
      if (b != sequence) kept = Kept(call, b), sequence = b;
      for (int64_t i = 0; i < call.queries; i++) {
        delta[i] = product(row<S>(call.output, b, h, i), row<S>(call.doutput, b, h, i), call.value_width);
        std::memset(dq_row(task, b, h, i), 0, call.width * sizeof(S));
      }
      for (int64_t block = plan.blocks - 1 - part; block >= 0; block -= plan.parts) {
        int first = block * plan.block_keys, count = kept.count() - first;
        if (count > 0) block_of_keys(task, b, h, first, count < plan.block_keys ? count : plan.block_keys, moment);
      }
      if (part == 0) clear_keys_left_out(b, h);
      for (int64_t i = 0; i < call.queries; i++)
        finish(dq_row(task, b, h, i), row<S>(call.q, b, h, i), centre(b, h), row<S>(call.radius, b, h, 0), moment);
    }

    const S* centre(int64_t b, int64_t h) const {  // a kept key: a left-out one may hold anything
      return kept.count() ? row<S>(call.k, b, h, kept.at[0]) : row<S>(call.q, b, h, 0);
    }

    S* dq_row(int64_t task, int64_t b, int64_t h, int64_t i) const {
      return dq_parts ? dq_parts + (task * call.queries + i) * call.width : row<S>(call.dq, b, h, i);
    }

    static S product(const S* a, const S* b, int64_t width) {
      V sums{};
      int64_t e = 0;
      for (; e + W <= width; e += W) sums += load<V>(a + e) * load<V>(b + e);
      S total = sum<S>(sums);
      for (; e < width; e++) total += a[e] * b[e];
      return total;
    }

    // Turns a token's sums of dS g into its gradient. The slopes of a head sum to 0, so any centre gives the same dR;
    // near the tokens fewer digits cancel. An infinite coordinate has no part in it.
    void finish(S* __restrict sums, const S* token, const S* centre, const S* radius, double* __restrict moment) const {
      for (int64_t d = 0; d < call.width; d++) {
        if (!std::isinf(token[d]))
          moment[d] += (double)sums[d] * (token[d] - (std::isinf(centre[d]) ? S(0) : centre[d]));
        sums[d] *= radius[d] * S(INVERSE_PI);
      }
    }

    void clear_keys_left_out(int64_t b, int64_t h) const {
      for (int64_t j = 0; call.keep && j < call.keys; j++)
        if (!call.keep[b * call.keys + j]) {
          std::memset(row<S>(call.dk, b, h, j), 0, call.width * sizeof(S));
          std::memset(row<S>(call.dv, b, h, j), 0, call.value_width * sizeof(S));
        }
    }

    void block_of_keys(int64_t task, int64_t b, int64_t h, int first, int count, double* moment) {
      const int32_t* at = kept.at.data() + first;
      read.keys(b, h, at, count, keys, key_ranges);
      int64_t padded = (count + W - 1) / W * W;
      std::memset(values, 0, padded * call.value_width * sizeof(S));
      std::memset(dkeys, 0, padded * call.width * sizeof(S));
      std::memset(dvalues, 0, padded * call.value_width * sizeof(S));
      any_unknown = false;
      for (int j = 0; j < count; j++) {
        const S *v = row<S>(call.v, b, h, at[j]), *k = row<S>(call.k, b, h, at[j]);
        S* to = values + (size_t)(j / W) * W * call.value_width + j % W;
        for (int64_t e = 0; e < call.value_width; e++) to[e * W] = v[e];
        any_unknown |= not_a_number_in(k, call.width) != 0 || not_a_number_in(v, call.value_width) != 0;
      }
      for (int64_t i = 0; i < call.queries; i += ROWS) rows(task, b, h, i, first, count);
      for (int j = 0; j < count; j++) {
        S *dk = row<S>(call.dk, b, h, at[j]), *dv = row<S>(call.dv, b, h, at[j]);
        copy_row(dkeys, j, call.width, dk);
        copy_row(dvalues, j, call.value_width, dv);
        finish(dk, row<S>(call.k, b, h, at[j]), centre(b, h), row<S>(call.radius, b, h, 0), moment);
      }
    }

    // Copies row j out of panels (width, W).
    static void copy_row(const S* panels, int j, int64_t width, S* __restrict out) {
      const S* from = panels + (size_t)(j / W) * W * width + j % W;
      for (int64_t d = 0; d < width; d++) out[d] = from[d * W];
    }

    // ROWS queries from i on against a block of keys.
    void rows(int64_t task, int64_t b, int64_t h, int64_t i, int first, int count) {
      int seen[ROWS], most = 0;  // keys of this block
      S row_delta[ROWS], row_scale[ROWS];
      Int row_shift[ROWS];
      for (int r = 0; r < ROWS; r++) {
        int64_t at = i + r < call.queries ? i + r : call.queries - 1;
        const S* norm = (const S*)call.norm + ((b * call.heads + h) * call.queries + at) * 2;
        row_delta[r] = delta[at], row_scale[r] = norm[0], row_shift[r] = (Int)norm[1];
        seen[r] = kept.seen_by(call, i + r) - first;
        most = seen[r] > most ? seen[r] : most;
      }
      most = most < count ? most : count;
      if (most <= 0) return;
      read.queries(b, h, i, queries, query_range);
      for (int r = 0; r < ROWS; r++) {
        const S* dy = row<S>(call.doutput, b, h, i + r < call.queries ? i + r : call.queries - 1);
        for (int64_t e = 0; e < call.value_width; e++) doutputs[e * ROWS + r] = dy[e];
      }
      for (int64_t d = 0; d < call.width * ROWS; d++) dqueries[d] = V{};
      for (int j = 0; j < most; j += W) {
        V shares[ROWS], dscores[ROWS];
        Tokens<S> x{queries, query_range};
        Tokens<S> y{keys + j * call.width * 2, key_ranges + j / W * 2 * padded(call.width)};
        Weights<S> w = call.disc ? disc_tile<S, true>(x, y, call.width, call.power, slopes)
                                 : backward_tile<S>(x, y, call.width, call.power, slopes);
        EACH_ROW(r) {
          shares[r] = scaled<S>(w.mantissa[r], w.exponent[r] - row_shift[r]) * row_scale[r];
          shares[r] = visible<S>(seen[r], j) ? shares[r] : V{};
        }
        add_products(values + j * call.value_width, dvalues + j * call.value_width, shares, dscores);
        EACH_ROW(r) {  // 0 times the infinity of a hidden key's value is not 0
          dscores[r] = shares[r] * (dscores[r] - row_delta[r]) * S(call.power);
          dscores[r] = visible<S>(seen[r], j) ? dscores[r] : V{};
        }
        if (any_unknown) clear_hidden_slopes(seen, j);
        add_slopes(dkeys + j * call.width, dscores);
      }
      for (int r = 0; r < ROWS && i + r < call.queries; r++) {
        S* out = dq_row(task, b, h, i + r);
        for (int64_t d = 0; d < call.width; d++) out[d] += sum<S>(dqueries[d * ROWS + r]);
      }
    }

    // 0 times NaN is not 0.
    void clear_hidden_slopes(const int* seen, int j) {
      for (int r = 0; r < ROWS; r++) {
        auto seen_here = visible<S>(seen[r], j);
        for (int64_t d = 0; d < call.width; d++)
          slopes[d * ROWS + r] = seen_here ? slopes[d * ROWS + r] : V{};
      }
    }

    // dscores = dy . v, and dv += P dy
    void add_products(const S* v, S* dv, const V* shares, V* dscores) {
      V products[ROWS] = {};
      for (int64_t e = 0; e < call.value_width; e++) {
        const S* dy = doutputs + e * ROWS;
        V value = load<V>(v + e * W), total = load<V>(dv + e * W);
        EACH_ROW(r) products[r] += dy[r] * value, total += dy[r] * shares[r];
        store(dv + e * W, total);
      }
      EACH_ROW(r) dscores[r] = products[r];
    }

    // dq += dS g, and dk -= dS g
    void add_slopes(S* dk, const V* dscores) {
      for (int64_t d = 0; d < call.width; d++) {
        V total = load<V>(dk + d * W);
        EACH_ROW(r) {
          V slope = slopes[d * ROWS + r];
          dqueries[d * ROWS + r] += dscores[r] * slope;
          total -= dscores[r] * slope;
        }
        store(dk + d * W, total);
      }
    }
  };
};
