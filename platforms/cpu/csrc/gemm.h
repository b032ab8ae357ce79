// Many rows of x: weights are repacked a slice at a time, which many rows share the cost of, so
// that sums run down the columns of a tile and need no folding at the end.
#pragma once

#include "dot.h"

namespace AM_ISA {

#if defined(__AVX512F__)
constexpr int COLUMNS = 4 * W;  // of a tile; its rows are MAX_MR
#else
constexpr int COLUMNS = 2 * W;
#endif

constexpr int64_t SLICE = 512;  // channels repacked at a time: a tile's columns fit the first cache
constexpr int64_t MAX_N = 64;   // outputs repacked at a time

template <class T>
struct Pack;

// One channel after the other, all columns of a tile side by side, as float.
template <class T>
struct PackWide {
  static constexpr int K = 1;
  typedef float Element;
  template <class Row>
  static AM_INLINE void pack(const Row& row, int64_t columns, int64_t C, Element* out) {
    for (int64_t n = 0; n < COLUMNS; n++) {
      const T* from = n < columns ? row(n) : nullptr;
      for (int64_t c = 0; c < C; c++) out[c * COLUMNS + n] = from ? to_float(from[c]) : 0;
    }
  }
  typedef f32 V;
  static AM_INLINE V load(const Element* p) { return AM_ISA::load(p); }
  static AM_INLINE V spread(const T* x) { return broadcast(to_float(*x)); }
  static AM_INLINE f32 madd(f32 sum, V a, V b) { return a * b + sum; }
};

template <>
struct Pack<float> : PackWide<float> {};

#if defined(__AVX512BF16__)

// 16 x 16 dwords, rows to columns.
AM_INLINE void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Two channels of a column side by side, the way the instruction multiplies them.
template <>
struct Pack<bf16> {
  static constexpr int K = 2;
  typedef bf16 Element;
  typedef __m512i V;

  // C is even.
  static AM_INLINE void transpose(const bf16* const* rows, int count, int64_t c, __mmask16 pairs,
                                  bf16* out) {
    __m512i r[16];
    for (int i = 0; i < 16; i++)
      r[i] = i < count ? _mm512_maskz_loadu_epi32(pairs, rows[i] + c) : _mm512_setzero_si512();
    transpose16(r);
    for (int i = 0; i < 16; i++) {
      if (pairs >> i & 1) _mm512_storeu_si512(out + i * 2 * COLUMNS, r[i]);
    }
  }

  template <class Row>
  static AM_INLINE void pack(const Row& row, int64_t columns, int64_t C, bf16* out) {
    for (int64_t n = 0; n < COLUMNS; n += 16) {
      const bf16* rows[16];
      const int count = columns - n < 0 ? 0 : columns - n < 16 ? int(columns - n) : 16;
      for (int i = 0; i < count; i++) rows[i] = row(n + i);
      for (int64_t c = 0; c < C; c += 32) {
        const int pairs = int(C - c < 32 ? C - c : 32) / 2;
        transpose(rows, count, c, __mmask16((1u << pairs) - 1), out + c * COLUMNS + 2 * n);
      }
    }
  }
  static AM_INLINE V load(const bf16* p) { return _mm512_loadu_si512(p); }
  static AM_INLINE V spread(const bf16* x) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return _mm512_set1_epi32(pair);
  }
  static AM_INLINE f32 madd(f32 sum, V a, V b) {
    return (f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};

#else

template <>
struct Pack<bf16> : PackWide<bf16> {};

#endif

// Memory that is needed soon: rows of a slice, so many bytes apart.
struct Soon {
  const char* first = nullptr;
  int64_t apart = 0, rows = 0;
};

// out[MR][COLUMNS] (+)= x[MR] . packed; a line of what is needed soon is asked for at each step.
template <class T, int MR>
__attribute__((noinline)) void gemm_tile(const T* x, int64_t ldx,
                                         const typename Pack<T>::Element* packed, int64_t C,
                                         Soon soon, bool add, float* out, int64_t ldo) {
  using P = Pack<T>;
  constexpr int V = COLUMNS / W;
  f32 acc[MR][V] = {};
  auto step = [&](int64_t c) __attribute__((always_inline)) {
    typename P::V w[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) w[v] = P::load(packed + c * COLUMNS + v * W * P::K);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      typename P::V spread = P::spread(x + m * ldx + c);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) acc[m][v] = P::madd(acc[m][v], spread, w[v]);
    }
  };
  int64_t c = 0;
  for (int64_t row = 0; row < soon.rows; row++) {
    const char* line = soon.first + row * soon.apart;
    const int64_t steps = SLICE * int64_t(sizeof(T)) / 64;
    const int64_t end = c + steps * P::K < C ? c + steps * P::K : C;
    for (; c < end; c += P::K, line += 64) {
      prefetch(line);
      step(c);
    }
  }
  for (; c < C; c += P::K) step(c);
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      float* at = out + m * ldo + v * W;
      store(at, add ? acc[m][v] + load(at) : acc[m][v]);
    }
  }
}

template <class T>
using GemmTile = void (*)(const T*, int64_t, const typename Pack<T>::Element*, int64_t,
                          Soon, bool, float*, int64_t);

template <class T>
AM_INLINE GemmTile<T> gemm_tile_for(int64_t mr) {
  switch (mr) {
    case 1: return gemm_tile<T, 1>;
    case 2: return gemm_tile<T, 2>;
    case 3: return gemm_tile<T, 3>;
    case 4: return gemm_tile<T, 4>;
    case 5: return gemm_tile<T, 5>;
    default: return gemm_tile<T, 6>;
  }
}

// All M rows against one packed tile's columns.
template <class T>
AM_INLINE void gemm_rows(const T* x, int64_t ldx, int64_t M,
                         const typename Pack<T>::Element* packed, int64_t C, bool add, float* out,
                         int64_t ldo) {
  const int64_t num_blocks = (M + MAX_MR - 1) / MAX_MR;
  for (int64_t i = 0; i < num_blocks; i++) {
    const int64_t m = M * i / num_blocks, mr = M * (i + 1) / num_blocks - m;
    gemm_tile_for<T>(mr)(x + m * ldx, ldx, packed, C, Soon{}, add, out + m * ldo,
                         ldo);
  }
}

// Packs N rows in memory: rows(c, size, ld) gives channels c .. c + size - 1 of them.
template <class T, class Rows>
AM_INLINE auto packing(int64_t N, const Rows& rows) {
  return [=, &rows](int64_t c, int64_t size, typename Pack<T>::Element* packed) {
    int64_t ld;
    const T* w = rows(c, size, ld);
    for (int64_t n = 0; n < N; n += COLUMNS)
      Pack<T>::pack([=](int64_t i) { return w + (n + i) * ld; },
                    N - n < COLUMNS ? N - n : COLUMNS, size, packed + n * SLICE);
  };
}

// out[M][N] = x[M] . w[N]; N is at most MAX_N, C a multiple of Pack<T>::K, and a row of `out` has
// room for N rounded up to whole tiles.  fill(c, size, packed) packs channels c .. c + size - 1 of
// w, tiles of COLUMNS after each other; soon(c) is where those from c on will come from, and is
// asked for in time.
template <class T, class Fill, class Ahead>
AM_INLINE void gemm(const T* x, int64_t ldx, int64_t M, int64_t N, int64_t C, const Fill& fill,
                    const Ahead& soon, float* out, int64_t ldo) {
  alignas(64) typename Pack<T>::Element packed[SLICE * MAX_N];
  const int64_t num_blocks = (M + MAX_MR - 1) / MAX_MR;
  for (int64_t c = 0; c < C; c += SLICE) {
    const int64_t size = C - c < SLICE ? C - c : SLICE;
    fill(c, size, packed);
    const Soon all = soon(c + SLICE);
    for (int64_t i = 0; i < num_blocks; i++) {
      const int64_t m = M * i / num_blocks, mr = M * (i + 1) / num_blocks - m;
      const int64_t row = all.rows * i / num_blocks;
      Soon some = {all.first + row * all.apart, all.apart, all.rows * (i + 1) / num_blocks - row};
      for (int64_t n = 0; n < N; n += COLUMNS, some.rows = 0)
        gemm_tile_for<T>(mr)(x + m * ldx + c, ldx, packed + n * SLICE, size, some, c > 0,
                             out + m * ldo + n, ldo);
    }
  }
}

}  // namespace AM_ISA
