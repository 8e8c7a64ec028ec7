// y_i = sum_j w_ij v_j / (eps + sum_j w_ij), ROWS queries at a time against all keys they see.
#pragma once
#include "call.h"
#include "disc.h"
#include "tiles.h"

template <class S>
struct Forward {
  typedef typename Simd<S>::V V;
  typedef typename Simd<S>::I I;
  typedef typename Real<S>::Int Int;
  static constexpr int W = Simd<S>::W;
  const Call& call;
  int64_t blocks, blocks_per_task, tasks_per_head;  // blocks of ROWS queries
  int64_t padded_keys, padded_values;
  int64_t least_shift;  // exponent of eps
  S eps;                // over 2^least_shift

  explicit Forward(const Call& call) : call(call) {
    blocks = (call.queries + ROWS - 1) / ROWS;
    bool many_heads = call.batch * call.heads >= 4 * call.threads;
    blocks_per_task = many_heads || blocks < 16 ? blocks : 16;
    tasks_per_head = blocks ? (blocks + blocks_per_task - 1) / blocks_per_task : 0;
    padded_keys = (call.keys + W - 1) / W * W;
    padded_values = (call.value_width + 2 * W - 1) / (2 * W) * 2 * W;
    least_shift = call.eps > 0 ? (int64_t)std::ceil(std::log2(call.eps)) : HIDDEN;
    eps = call.eps > 0 ? (S)std::ldexp(call.eps, (int)-least_shift) : S(0);
  }
  bool run() const {
    return parallel(call, call.batch * call.heads * tasks_per_head, [this] { return Worker(*this); });
  }

  struct Worker {
    const Forward& plan;
    const Call& call = plan.call;
    int64_t sequence = 0, head = -1;  // whose keys and values the buffers hold
    Kept kept{call, 0};
    Reader<S> read{call};
    Buffer<S> queries{call.width * 2 * ROWS}, keys{plan.padded_keys * call.width * 2};
    Buffer<S> query_range{2 * padded(call.width)}, key_ranges{plan.padded_keys / W * 2 * padded(call.width)};
    Buffer<S> values{call.keys * plan.padded_values}, weights{plan.padded_keys * ROWS}, unknown{plan.padded_keys};
    Buffer<Int> exponents{plan.padded_keys * ROWS};
    explicit Worker(const Forward& plan) : plan(plan) {}

    void operator()(int64_t task) {
      int64_t h = task / plan.tasks_per_head, b = h / call.heads;
      int64_t part = plan.tasks_per_head - 1 - task % plan.tasks_per_head;  // causal: last rows, most keys, first
      if (b != sequence) kept = Kept(call, b), sequence = b;
      if (h != head) read_keys_and_values(b, h % call.heads), head = h;
      for (int64_t block = part * plan.blocks_per_task; block < (part + 1) * plan.blocks_per_task; block++)
        if (block < plan.blocks) rows(b, h % call.heads, block * ROWS);
    }

    void read_keys_and_values(int64_t b, int64_t h) {
      read.keys(b, h, kept.at.data(), kept.count(), keys, key_ranges);
      std::memset(unknown, 0, plan.padded_keys * sizeof(S));
      for (int j = 0; j < kept.count(); j++) {
        unknown[j] = not_a_number_in(row<S>(call.k, b, h, kept.at[j]), call.width);
        S* out = values + j * plan.padded_values;
        std::memcpy(out, row<S>(call.v, b, h, kept.at[j]), call.value_width * sizeof(S));
        std::memset(out + call.value_width, 0, (plan.padded_values - call.value_width) * sizeof(S));
      }
    }

    void rows(int64_t b, int64_t h, int64_t first) {
      int seen[ROWS], most = 0;
      S unknown_radius = not_a_number_in(row<S>(call.radius, b, h, 0), call.width), unknown_query[ROWS];
      I highest[ROWS];
      for (int r = 0; r < ROWS; r++) {
        seen[r] = kept.seen_by(call, first + r);
        most = seen[r] > most ? seen[r] : most;
        int64_t i = first + r < call.queries ? first + r : call.queries - 1;
        unknown_query[r] = unknown_radius + not_a_number_in(row<S>(call.q, b, h, i), call.width);
        highest[r] = I{} + HIDDEN;
      }
      read.queries(b, h, first, queries, query_range);
      for (int j = 0; j < most; j += W) {
        Tokens<S> x{queries, query_range};
        Tokens<S> y{keys + j * call.width * 2, key_ranges + j / W * 2 * padded(call.width)};
        Weights<S> w = call.disc ? disc_tile<S, false>(x, y, call.width, call.power)
                                 : forward_tile<S>(x, y, call.width, call.power);
        V unknown_keys = load<V>(unknown + j);
        EACH_ROW(r) {
          I seen_here = visible<S>(seen[r], j);
          w.mantissa[r] = seen_here ? w.mantissa[r] + (unknown_keys + unknown_query[r]) : V{};
          w.exponent[r] = seen_here ? w.exponent[r] : I{} + HIDDEN;
          highest[r] = w.exponent[r] > highest[r] ? w.exponent[r] : highest[r];
          store(weights + j * ROWS + r * W, w.mantissa[r]);
          store(exponents + j * ROWS + r * W, w.exponent[r]);
        }
      }
      S scale[ROWS];
      for (int r = 0; r < ROWS; r++) scale[r] = normalise(r, most, highest[r], b, h, first + r);
      add_values(seen, most, scale, b, h, first);
    }

    // Scales the weights of a row to one exponent, the highest or that of eps; returns 1 / (eps + sum) in this scale.
    S normalise(int r, int most, I highest, int64_t b, int64_t h, int64_t i) {
      int64_t top = HIDDEN;
      for (int j = 0; j < W; j++) top = highest[j] > top ? (int64_t)highest[j] : top;
      bool any = top > -ABSENT / 2 * call.power;
      int64_t shift = any && top > plan.least_shift ? top : call.eps > 0 ? plan.least_shift : 0;
      V sums{};
      for (int j = 0; j < most; j += W) {
        S* w = weights + j * ROWS + r * W;
        V x = scaled<S>(load<V>(w), load<I>(exponents + j * ROWS + r * W) - Int(shift));
        sums += x;
        store(w, x);
      }
      S total = sum<S>(sums) + scaled<S>(all<V>(plan.eps), I{} + Int(plan.least_shift - shift))[0];
      S scale = total == 0 || (!any && call.eps == 0) ? S(0) : 1 / total;
      if (i < call.queries) {
        S* norm = (S*)call.norm + ((b * call.heads + h) * call.queries + i) * 2;
        norm[0] = scale, norm[1] = (S)shift;
      }
      return scale;
    }

    void add_values(const int* seen, int most, const S* scale, int64_t b, int64_t h, int64_t first) {
      int shared = most;  // keys that all rows see: no weight, not even 0, may multiply the values of other keys
      for (int r = 0; r < ROWS; r++) shared = first + r < call.queries && seen[r] < shared ? seen[r] : shared;
      for (int64_t e = 0; e < call.value_width; e += 2 * W) {
        V sums[ROWS][2] = {};
        for (int j = 0; j < most; j++) {
          const S *v = values + j * plan.padded_values + e, *w = weights + j / W * W * ROWS + j % W;
          V v0 = load<V>(v), v1 = load<V>(v + W);
          if (j < shared) {
            EACH_ROW(r) sums[r][0] += w[r * W] * v0, sums[r][1] += w[r * W] * v1;
          } else {
            for (int r = 0; r < ROWS; r++)
              if (j < seen[r]) sums[r][0] += w[r * W] * v0, sums[r][1] += w[r * W] * v1;
          }
        }
        int64_t width = call.value_width - e < 2 * W ? call.value_width - e : 2 * W;
        for (int r = 0; r < ROWS && first + r < call.queries; r++) {
          V out[2] = {sums[r][0] * scale[r], sums[r][1] * scale[r]};
          std::memcpy(row<S>(call.output, b, h, first + r) + e, out, width * sizeof(S));
        }
      }
    }
  };
};
