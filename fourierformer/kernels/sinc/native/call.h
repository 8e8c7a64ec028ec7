// The arguments from Python, and parts of forward and backward: threads, memory, reading of queries and keys.
#pragma once
#include <atomic>
#include <cstdlib>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "tiles.h"

extern "C" {
struct Array {
  void* data;
  int64_t batch, head, token;  // strides, counted in numbers; coordinates are adjacent
};
struct Call {
  int64_t batch, heads, queries, keys, width, value_width, power, causal, disc, threads;
  double eps;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of PyTorch's OpenMP, or nothing
  Array q, k, v, radius, output, doutput, dq, dk, dv, dradius;  // radius and dradius: token stride 0
  void* norm;  // (batch, heads, queries, 2): 1 / (eps + sum of weights), both over 2^shift, and shift
  const uint8_t* keep;  // (batch, keys), 0 where a key is left out; or nothing
};
}

template <class S>
INLINE S* row(const Array& a, int64_t b, int64_t h, int64_t token) {
  return (S*)a.data + b * a.batch + h * a.head + token * a.token;
}

// Calls worker(task) once for every task below `count`, with a worker per thread; false if memory ran out.
template <class F>
bool parallel(const Call& call, int64_t count, const F& make_worker) {
  struct Shared {
    const F& make_worker;
    int64_t count;
    std::atomic<int64_t> next{0};
    std::atomic<bool> good{true};
  } shared{make_worker, count};
  auto work = [](void* data) {
    Shared& shared = *(Shared*)data;
    TinyIsZero tiny_is_zero;
    try {
      auto worker = shared.make_worker();
      for (int64_t task; (task = shared.next++) < shared.count;) worker(task);
    } catch (const std::bad_alloc&) {
      shared.good = false;
    }
  };
  unsigned threads = call.threads < count ? call.threads : count;
  if (threads <= 1) {
    work(&shared);
  } else if (call.parallel) {
    call.parallel(work, &shared, threads, 0);
  } else {
    std::vector<std::thread> others;
    try {
      for (unsigned i = 1; i < threads; i++) others.emplace_back(work, &shared);
    } catch (const std::system_error&) {  // no more threads: the existing ones do all the work
    }
    work(&shared);
    for (auto& thread : others) thread.join();
  }
  return shared.good;
}

template <class S>
struct Buffer {  // aligned, not initialised
  S* p;
  explicit Buffer(int64_t n) : p((S*)std::aligned_alloc(64, (n * sizeof(S) + 64) / 64 * 64)) {
    if (!p) throw std::bad_alloc();
  }
  ~Buffer() { std::free(p); }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) : p(other.p) { other.p = nullptr; }
  operator S*() const { return p; }
};

// The keys of a sequence that are not left out, in order; key numbers of the kernel count these.
struct Kept {
  std::vector<int32_t> at, before;  // the position of each; the number of kept keys before a position
  Kept(const Call& call, int64_t b) : before(call.keys + 1) {
    at.reserve(call.keys);
    for (int64_t j = 0; j < call.keys; j++) {
      before[j] = (int32_t)at.size();
      if (!call.keep || call.keep[b * call.keys + j]) at.push_back((int32_t)j);
    }
    before[call.keys] = (int32_t)at.size();
  }
  int count() const { return (int)at.size(); }
  int seen_by(const Call& call, int64_t i) const {  // query i; a row beyond the last query sees none
    if (i >= call.queries) return 0;
    int64_t end = call.causal ? i + 1 + call.keys - call.queries : call.keys;
    return before[end < 0 ? 0 : end];
  }
};

// All bits set for the keys of the vector at j that are below `seen`, else none.
template <class S>
INLINE typename Simd<S>::I visible(int seen, int j) {
  typename Simd<S>::I place;
  for (int i = 0; i < Simd<S>::W; i++) place[i] = i;
  return place < typename Real<S>::Int(seen - j);
}

template <class S>
INLINE S not_a_number_in(const S* x, int64_t width) {  // 0 if there is none
  typedef typename Simd<S>::V V;
  V found{};
  int64_t d = 0;
  for (; d + Simd<S>::W <= width; d += Simd<S>::W) found += load<V>(x + d) != load<V>(x + d) ? load<V>(x + d) : V{};
  S total = sum<S>(found);
  for (; d < width; d++) total += x[d] != x[d] ? x[d] : S(0);
  return total;
}

// Writes queries and keys in the order in which the tiles read them, with their ranges.
template <class S>
struct Reader {
  static constexpr int W = Simd<S>::W;
  const Call& call;
  Buffer<S> coarse, fine;
  explicit Reader(const Call& call) : call(call), coarse(call.width), fine(call.width) {}
  // ROWS queries from `first` on as (width, 2, ROWS).
  void queries(int64_t b, int64_t h, int64_t first, S* out, S* range) {
    start(range);
    for (int r = 0; r < ROWS; r++) {
      const S* x = row<S>(call.q, b, h, first + r < call.queries ? first + r : call.queries - 1);
      write(x, b, h, false, out + r, ROWS, range);
    }
  }
  // `count` kept keys as panels of (width, 2, W), the last one padded.
  void keys(int64_t b, int64_t h, const int32_t* at, int count, S* out, S* ranges) {
    for (int j = 0; j < (count + W - 1) / W * W; j++) {
      const S* x = row<S>(call.k, b, h, at[j < count ? j : count - 1]);
      S* range = ranges + (size_t)(j / W) * 2 * padded(call.width);
      if (j % W == 0) start(range);
      write(x, b, h, true, out + (size_t)(j / W) * W * call.width * 2 + j % W, W, range);
    }
  }
  void start(S* range) {
    for (int64_t d = 0; d < padded(call.width); d++) {
      range[d] = d < call.width ? Real<S>::largest : S(0);
      range[padded(call.width) + d] = -range[d];
    }
  }
  void write(const S* x, int64_t b, int64_t h, bool is_key, S* out, int stride, S* __restrict low) {
    in_half_turns<S>(x, row<S>(call.radius, b, h, 0), call.width, is_key, coarse, fine);
    S* __restrict high = low + padded(call.width);
    for (int64_t d = 0; d < call.width; d++) {
      low[d] = coarse[d] < low[d] ? coarse[d] : low[d];
      high[d] = coarse[d] > high[d] ? coarse[d] : high[d];
    }
    for (int64_t d = 0; d < call.width; d++) out[2 * d * stride] = coarse[d], out[(2 * d + 1) * stride] = fine[d];
  }
};
