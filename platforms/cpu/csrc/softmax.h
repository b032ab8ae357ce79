// The softmax that runs on from one tile of keys to the next.
//
// Source: Milakov and Gimelshein, arXiv:1805.02867.  Legend: R rows (a query's head each), D head dim.
#pragma once

#include "vec.h"

namespace AM_ISA {

constexpr int64_t MAX_ROWS = 64;
constexpr int64_t KEYS = 64;  // of a tile
constexpr int64_t MAX_D = 256;
constexpr float NONE = -1e30f;  // below every score

// What has been seen so far: the largest score, the sum of weights, the weighted sum of values.
struct Running {
  alignas(64) float out[MAX_ROWS * MAX_D];  // rows are `stride` apart
  float top[MAX_ROWS], total[MAX_ROWS];
  int64_t stride;

  void clear(int64_t R, int64_t D) {
    stride = (D + 63) / 64 * 64;
    for (int64_t r = 0; r < R; r++) top[r] = NONE, total[r] = 0;
    memset(out, 0, sizeof(float) * R * stride);
  }
};

AM_INLINE float exp1(float x) { return exp(broadcast(x))[0]; }

// Row r's scores of `n` keys become weights, 0 for keys outside [from, to) and up to the next W.
AM_INLINE void soften(float* s, int64_t n, int64_t from, int64_t to, float scale, float soft_cap,
                      Running& run, int64_t r) {
  const int64_t padded = (n + W - 1) / W * W;
  if (from >= to) {
    for (int64_t j = 0; j < padded; j += W) store(s + j, f32{});
    return;
  }
  f32 most = broadcast(run.top[r]);
  if (soft_cap > 0) {
    for (int64_t j = 0; j < padded; j += W)
      store(s + j, tanh(load(s + j) * (scale / soft_cap)) * soft_cap);
    scale = 1;
  }
  for (int64_t j = 0; j < from; j++) s[j] = NONE;
  for (int64_t j = to; j < padded; j++) s[j] = NONE;
  for (int64_t j = 0; j < padded; j += W) most = max(most, load(s + j) * scale);
  const float top = largest(most);
  if (top > run.top[r]) {
    const float by = exp1(run.top[r] - top);
    run.top[r] = top;
    run.total[r] *= by;
    float* row = run.out + r * run.stride;
    for (int64_t i = 0; i < run.stride; i += W) store(row + i, load(row + i) * by);
  }
  f32 total = {};
  for (int64_t j = 0; j < padded; j += W) {
    f32 weight = exp(load(s + j) * scale - top);
    total += weight;
    store(s + j, weight);
  }
  run.total[r] += sum(total);
}

}  // namespace AM_ISA
