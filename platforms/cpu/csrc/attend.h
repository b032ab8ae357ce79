// One tile of keys and values against a task's rows.  With few rows each key is used where it lies;
// with many it is repacked first, which many rows share the cost of.
//
// Legend: R rows (a query's head each), D head dim.
#pragma once

#include "gemm.h"
#include "softmax.h"

namespace AM_ISA {

constexpr int64_t FEW_ROWS = 6;

// ---- few rows

// acc[MR][V * W] += p[MR][n] . v[n]; what lies `ahead` elements further is asked for.
template <class T, int MR, int V>
AM_INLINE void weigh_tile(const float* p, const T* v, int64_t ldv, int64_t n, int64_t ahead,
                          float* acc, int64_t lda) {
  f32 sum[MR][V];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) sum[m][i] = load(acc + m * lda + i * W);
  }
  for (int64_t j = 0; j < n; j++) {
    f32 value[V];
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) value[i] = load(v + j * ldv + i * W);
    for (int line = 0; line < int(V * W * sizeof(T)); line += 64)
      prefetch(reinterpret_cast<const char*>(v + j * ldv + ahead) + line);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      f32 weight = broadcast(p[m * KEYS + j]);
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) sum[m][i] = weight * value[i] + sum[m][i];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) store(acc + m * lda + i * W, sum[m][i]);
  }
}

template <class T, int MR>
__attribute__((noinline)) void weigh_rows(const float* p, const T* v, int64_t n, int64_t D,
                                          int64_t ahead, float* acc, int64_t lda) {
  int64_t d = 0;
  for (; d + 4 * W <= D; d += 4 * W) weigh_tile<T, MR, 4>(p, v + d, D, n, ahead, acc + d, lda);
  for (; d + W <= D; d += W) weigh_tile<T, MR, 1>(p, v + d, D, n, ahead, acc + d, lda);
  for (; d < D; d++) {
    for (int m = 0; m < MR; m++) {
      for (int64_t j = 0; j < n; j++) acc[m * lda + d] += p[m * KEYS + j] * to_float(v[j * D + d]);
    }
  }
}

template <class T>
AM_INLINE void weigh(const float* p, int64_t R, const T* v, int64_t n, int64_t D, int64_t ahead,
                     float* acc, int64_t lda) {
  const int64_t num_blocks = (R + 5) / 6;
  for (int64_t i = 0; i < num_blocks; i++) {
    const int64_t r = R * i / num_blocks;
    const float* weights = p + r * KEYS;
    float* out = acc + r * lda;
    switch (R * (i + 1) / num_blocks - r) {
      case 1: weigh_rows<T, 1>(weights, v, n, D, ahead, out, lda); break;
      case 2: weigh_rows<T, 2>(weights, v, n, D, ahead, out, lda); break;
      case 3: weigh_rows<T, 3>(weights, v, n, D, ahead, out, lda); break;
      case 4: weigh_rows<T, 4>(weights, v, n, D, ahead, out, lda); break;
      case 5: weigh_rows<T, 5>(weights, v, n, D, ahead, out, lda); break;
      default: weigh_rows<T, 6>(weights, v, n, D, ahead, out, lda); break;
    }
  }
}


// ---- many rows

template <class T>
struct Packed {
  static constexpr bool HAS = false;
};

#if defined(__AVX512BF16__)

template <>
struct Packed<bf16> {
  static constexpr bool HAS = true;
  alignas(64) bf16 keys[KEYS * MAX_D];    // [D / 2][KEYS][2]
  alignas(64) bf16 values[KEYS * MAX_D];  // [D / COLUMNS][KEYS / 2][COLUMNS][2]
  alignas(64) bf16 weights[MAX_ROWS * KEYS];

  // row(j) is where key j lies, and its value `to_values` further; n is at most KEYS.
  template <class Row>
  AM_INLINE void take(const Row& row, int64_t n, int64_t D, int64_t to_values) {
    static_assert(KEYS == COLUMNS, "a tile of keys is a tile's columns");
    Pack<bf16>::pack(row, n, D, keys);
    for (int64_t j = 0; j < n; j += 2) {
      const bf16* even = row(j) + to_values;
      const bf16* odd = j + 1 < n ? row(j + 1) + to_values : nullptr;
      for (int64_t d = 0; d < D; d += 16) {
        const __mmask16 lanes = D - d < 16 ? __mmask16((1u << (D - d)) - 1) : __mmask16(0xffff);
        __m512i pair = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, even + d));
        if (odd) {
          __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, odd + d));
          pair = _mm512_or_si512(pair, _mm512_slli_epi32(high, 16));
        }
        bf16* at = values + d / COLUMNS * KEYS * COLUMNS + j * COLUMNS + d % COLUMNS * 2;
        _mm512_store_si512(at, pair);
      }
    }
  }

  // scores [R][KEYS] = q [R][D] . keys
  AM_INLINE void score(const bf16* q, int64_t R, int64_t D, float* scores) const {
    gemm_rows<bf16>(q, D, R, keys, D, false, scores, KEYS);
  }

  // run.out += weights . values, the weights of n keys in scores [R][KEYS]
  AM_INLINE void weigh(const float* scores, int64_t R, int64_t n, int64_t D, Running& run) {
    const int64_t even = (n + 1) / 2 * 2;
    for (int64_t r = 0; r < R; r++) narrow(scores + r * KEYS, weights + r * KEYS, (n + W - 1) / W * W);
    for (int64_t d = 0; d < D; d += COLUMNS)
      gemm_rows<bf16>(weights, KEYS, R, values + d * KEYS, even, true, run.out + d, run.stride);
  }
};

#endif

}  // namespace AM_ISA
