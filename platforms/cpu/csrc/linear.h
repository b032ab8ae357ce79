// y = x W^T + b.  Rows of W are used where they lie, or decoded a few at a time into a buffer that
// stays in the nearest cache.
//
// Legend: M tokens, N outputs, C channels.
#pragma once

#include "gemm.h"
#include "parallel.h"

namespace AM_ISA {

constexpr int64_t MAX_CHUNK = 64;  // outputs a thread takes at a time
constexpr int64_t PANEL = 192;     // tokens whose activations stay in the second cache
constexpr int64_t FEW = 36;        // tokens up to which weights are read at memory's speed
constexpr int64_t DEPTH = 1024;    // channels at a time, so that a tile's rows stay in the first

AM_INLINE int64_t chunk_of(int64_t N) {
  const int64_t fair = N / (int64_t(allmetal::num_threads) * 4) / 8 * 8;
  return fair < 8 ? 8 : fair > MAX_CHUNK ? MAX_CHUNK : fair;
}

// Sums to outputs: times the output's scale, plus its bias, rounded.
template <class T>
AM_INLINE void finish(const float* sums, int64_t n, const float* scale, const T* bias, T* y) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    f32 v = load(sums + i);
    if (scale) v *= load(scale + i);
    if (bias) v += load(bias + i);
    store(y + i, v);
  }
  for (; i < n; i++) {
    float v = sums[i] * (scale ? scale[i] : 1.0f) + (bias ? to_float(bias[i]) : 0.0f);
    from_float(v, y + i);
  }
}

// sums[M][N] = x[M] . w[N], weights coming from memory.
template <class T>
AM_INLINE void multiply(const T* x, int64_t M, const T* w, int64_t N, int64_t C, float* sums) {
  if (M > FEW && C % Pack<T>::K == 0) {
    gemm(x, C, M, w, C, N, C, sums, MAX_CHUNK);
    return;
  }
  const int64_t depth = M <= MAX_MR ? C : DEPTH;
  for (int64_t c = 0; c < C; c += depth) {
    const int64_t size = C - c < depth ? C - c : depth;
    dots(x + c, C, M, w + c, C, N, size, (M <= 3 ? 8 : 4) * C, c > 0, sums, MAX_CHUNK);
  }
}

template <class T>
void linear(T* y, const T* x, const T* w, const T* bias, int64_t M, int64_t N, int64_t C) {
  for (int64_t m = 0; m < M; m += PANEL) {
    const int64_t size = M - m < PANEL ? M - m : PANEL;
    parallel(N, size > FEW ? MAX_CHUNK : chunk_of(N), [&](int64_t begin, int64_t end) {
      float sums[PANEL * MAX_CHUNK];
      multiply(x + m * C, size, w + begin * C, end - begin, C, sums);
      for (int64_t i = 0; i < size; i++) {
        finish<T>(sums + i * MAX_CHUNK, end - begin, nullptr, bias ? bias + begin : nullptr,
                  y + (m + i) * N + begin);
      }
    });
  }
}

}  // namespace AM_ISA
