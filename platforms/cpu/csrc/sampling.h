// One token a row.  Filters only decide the least logit that is kept: it is found among the largest
// few, widening where they do not suffice, and nothing of the vocabulary's size is sorted.
//
// Agrees with the reference: min-p, then top-k, then top-p, ties of the last kept; the draw is the
// inverse of the cumulative distribution in vocabulary order.
//
// Legend: V vocabulary.  Below, "logs" are (logit - largest) / temperature, at most 0.
#pragma once

#include <cstdlib>

#include "parallel.h"

namespace AM_ISA {

constexpr int64_t STRETCH = 1024;

AM_INLINE int64_t largest_index(const float* x, int64_t V, float& value) {
  float best = -__builtin_inff();
  int64_t where = 0;
  for (int64_t start = 0; start < V; start += STRETCH) {
    const int64_t end = V - start < STRETCH ? V : start + STRETCH;
    f32 most = broadcast(-__builtin_inff());
    int64_t i = start;
    for (; i + W <= end; i += W) most = max(most, load(x + i));
    float here = largest(most);
    for (; i < end; i++) here = x[i] > here ? x[i] : here;
    if (here > best) best = here, where = start;
  }
  for (int64_t i = where; i < V; i++) {
    if (x[i] == best) {
      value = best;
      return i;
    }
  }
  value = best;
  return 0;
}

// The largest first, without sorting more than is asked for.
class Heap {
 public:
  Heap(float* x, int64_t n) : x_(x), n_(n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift(i);
  }
  bool empty() const { return n_ == 0; }
  float pop() {
    const float top = x_[0];
    x_[0] = x_[--n_];
    sift(0);
    return top;
  }

 private:
  void sift(int64_t i) {
    if (i >= n_) return;
    const float value = x_[i];
    for (int64_t child; (child = 2 * i + 1) < n_; i = child) {
      if (child + 1 < n_ && x_[child + 1] > x_[child]) child++;
      if (x_[child] <= value) break;
      x_[i] = x_[child];
    }
    x_[i] = value;
  }
  float* x_;
  int64_t n_;
};

struct Row {
  const float* logits;
  int64_t V;
  float largest, by;  // logs = (logit - largest) * by
  float* some;        // room for V

  AM_INLINE f32 logs(int64_t i) const { return (load(logits + i) - largest) * by; }
  AM_INLINE float log1(int64_t i) const { return (logits[i] - largest) * by; }

  // Puts the logs of at least `least` into `some`.
  int64_t gather(float least) const {
    int64_t n = 0, i = 0;
#if defined(__AVX512F__)
    for (; i + W <= V; i += W) {
      const __m512 v = (__m512)logs(i);
      const __mmask16 kept = _mm512_cmp_ps_mask(v, _mm512_set1_ps(least), _CMP_GE_OQ);
      if (kept) {
        _mm512_mask_compressstoreu_ps(some + n, kept, v);
        n += __builtin_popcount(kept);
      }
    }
#endif
    for (; i < V; i++) {
      if (log1(i) >= least) some[n++] = log1(i);
    }
    return n;
  }

  // e^log of what is at least `least`, summed.
  double mass(float least) const {
    double total = 0;
    for (int64_t start = 0; start < V; start += STRETCH) total += stretch(start, least, nullptr);
    return total;
  }

  // The part of `mass` in the stretch from `start` on; the single ones go to `each`.
  AM_INLINE float stretch(int64_t start, float least, float* each) const {
    const int64_t end = V - start < STRETCH ? V : start + STRETCH;
    f32 sums = {};
    int64_t i = start;
    for (; i + W <= end; i += W) {
      f32 log = logs(i);
      f32 one = log >= least ? exp(log) : f32{};
      sums += one;
      if (each) store(each + i - start, one);
    }
    float total = sum(sums);
    for (; i < end; i++) {
      const float one = log1(i) >= least ? exp(broadcast(log1(i)))[0] : 0;
      total += one;
      if (each) each[i - start] = one;
    }
    return total;
  }

  float kth_largest(int64_t k) const {
    for (float least = -8;; least *= 4) {
      const bool all = least < -1000;
      const int64_t n = gather(all ? -__builtin_inff() : least);
      if (n < k && !all) continue;
      Heap heap(some, n);
      float value = 0;
      for (int64_t i = 0; i < k && !heap.empty(); i++) value = heap.pop();
      return value;
    }
  }

  // The least of the fewest that hold the share `p` of what is at least `lowest`.
  float holding(double p, float lowest) const {
    const double needed = p * mass(lowest);
    for (float least = -8;; least *= 4) {
      const bool all = least < -1000 || least <= lowest;
      Heap heap(some, gather(all ? lowest : least));
      double held = 0;
      float value = lowest;
      while (!heap.empty()) {
        value = heap.pop();
        held += exp(broadcast(value))[0];
        if (held >= needed) return value;
      }
      if (all) return value;
    }
  }

  int64_t draw(float u, float lowest) const {
    const int64_t count = (V + STRETCH - 1) / STRETCH;
    float each[STRETCH];
    float* sums = some;  // free by now, and V is at least the number of stretches
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += sums[i] = stretch(i * STRETCH, lowest, nullptr);
    const double target = double(u) * total;
    double before = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) {
      if (sums[i] == 0) continue;
      last = i;
      if (before + sums[i] > target) break;
      before += sums[i];
    }
    stretch(last * STRETCH, lowest, each);
    const int64_t size = V - last * STRETCH < STRETCH ? V - last * STRETCH : STRETCH;
    int64_t found = 0;
    for (int64_t i = 0; i < size; i++) {
      if (each[i] == 0) continue;
      found = i;
      if ((before += each[i]) > target) break;
    }
    return last * STRETCH + found;
  }
};

AM_INLINE float log_of(float x) { return __builtin_logf(x); }

inline void sampling(int64_t* out, const float* logits, const float* temperature,
                     const int32_t* top_k, const float* top_p, const float* min_p,
                     const float* uniform, int64_t num_rows, int64_t V) {
  parallel(num_rows, 1, [&](int64_t r, int64_t) {
    Row row = {logits + r * V, V, 0, 1, nullptr};
    const int64_t greedy = largest_index(row.logits, V, row.largest);
    if (!temperature || temperature[r] <= 0) {
      out[r] = greedy;
      return;
    }
    row.by = 1.0f / temperature[r];
    row.some = static_cast<float*>(malloc(sizeof(float) * V));
    float lowest = -__builtin_inff();
    if (min_p && min_p[r] > 0) lowest = log_of(min_p[r]);
    if (top_k && top_k[r] > 0 && top_k[r] < V) {
      const float kth = row.kth_largest(top_k[r]);
      lowest = kth > lowest ? kth : lowest;
    }
    if (top_p && top_p[r] < 1) {
      const float least = row.holding(top_p[r], lowest);
      lowest = least > lowest ? least : lowest;
    }
    out[r] = row.draw(uniform[r], lowest);
    free(row.some);
  });
}

}  // namespace AM_ISA
