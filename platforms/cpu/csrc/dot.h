// Tiles of dot products between rows: out[m][n] = x[m] . w[n], both row-major as they are in a
// checkpoint, so a weight needs no second, packed copy.  Each of the MR * NR sums is a whole vector
// of partial sums until the end, which keeps the tile in registers and the loads contiguous.
//
// T is the type of x and w; sums are float.
#pragma once

#include "vec.h"

namespace AM_ISA {

template <class T>
struct Dot;

template <>
struct Dot<float> {
  static constexpr int STEP = W;
  typedef f32 V;
  static AM_INLINE V load(const float* p) { return AM_ISA::load(p); }
  static AM_INLINE V load_part(const float* p, int count) {
    f32 out = {};
    for (int i = 0; i < count; i++) out[i] = p[i];
    return out;
  }
  static AM_INLINE f32 madd(f32 sum, V a, V b) { return a * b + sum; }
};

#if defined(__AVX512BF16__)

template <>
struct Dot<bf16> {
  static constexpr int STEP = 32;
  typedef __m512i V;
  static AM_INLINE V load(const bf16* p) { return _mm512_loadu_si512(p); }
  static AM_INLINE V load_part(const bf16* p, int count) {
    return _mm512_maskz_loadu_epi16((__mmask32(1) << count) - 1, p);
  }
  static AM_INLINE f32 madd(f32 sum, V a, V b) {
    return (f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};

#else

// Two bfloat16 side by side in 32 bits: the low one shifted up and the high one masked are floats,
// and a dot product does not mind which lane a product is summed in.
template <>
struct Dot<bf16> {
  static constexpr int STEP = 2 * W;
  typedef i32 V;
  static AM_INLINE V load(const bf16* p) {
    return *reinterpret_cast<const i32u*>(p);
  }
  static AM_INLINE V load_part(const bf16* p, int count) {
    bf16 padded[STEP] = {};
    for (int i = 0; i < count; i++) padded[i] = p[i];
    return load(padded);
  }
  static AM_INLINE f32 madd(f32 sum, V a, V b) {
    const i32 high = broadcast(int32_t(0xffff0000));
    sum = (f32)(a << 16) * (f32)(b << 16) + sum;
    return (f32)(a & high) * (f32)(b & high) + sum;
  }
};

#endif

// out[i] = sum of the lanes of v[i], on top of out[i] with `add`; COUNT is 1 or a multiple of 4.
template <int COUNT>
AM_INLINE void sums(const f32* v, float* out, bool add) {
#if defined(__AVX512F__)
  if constexpr (COUNT % 4 == 0) {
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; i += 4) {
      __m512 a = (__m512)v[i], b = (__m512)v[i + 1], c = (__m512)v[i + 2], d = (__m512)v[i + 3];
      __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
      __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
      __m512d lo = _mm512_unpacklo_pd((__m512d)ab, (__m512d)cd);
      __m512d hi = _mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
      __m512 four = _mm512_add_ps((__m512)lo, (__m512)hi);
      __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
      __m128 got = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
      if (add) got = _mm_add_ps(got, _mm_loadu_ps(out + i));
      _mm_storeu_ps(out + i, got);
    }
    return;
  }
#endif
  for (int i = 0; i < COUNT; i++) out[i] = sum(v[i]) + (add ? out[i] : 0.0f);
}

// What a tile does besides: weights AHEAD elements on are asked for early, of AHEAD_ROWS rows, so
// that the next tile's are on their way; with `add`, sums join what is in `out`.
struct Extra {
  int64_t ahead = 0;
  bool add = false;
};

// out[m * ldo + n] = x[m] . w[n] over C channels.
template <class T, int MR, int NR, int AHEAD_ROWS>
__attribute__((noinline)) void dot_tile(const T* x, int64_t ldx, const T* w, int64_t ldw,
                                        int64_t C, Extra extra, float* out, int64_t ldo) {
  using D = Dot<T>;
  f32 acc[MR][NR] = {};
  int64_t c = 0;
  for (; c + D::STEP <= C; c += D::STEP) {
    typename D::V wv[NR];
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) wv[n] = D::load(w + n * ldw + c);
#pragma GCC unroll 8
    for (int n = 0; n < AHEAD_ROWS; n++) prefetch(w + n * ldw + c + extra.ahead);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      typename D::V xv = D::load(x + m * ldx + c);
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) acc[m][n] = D::madd(acc[m][n], xv, wv[n]);
    }
  }
  if (c < C) {
    const int rest = int(C - c);
    typename D::V wv[NR];
    for (int n = 0; n < NR; n++) wv[n] = D::load_part(w + n * ldw + c, rest);
    for (int m = 0; m < MR; m++) {
      typename D::V xv = D::load_part(x + m * ldx + c, rest);
      for (int n = 0; n < NR; n++) acc[m][n] = D::madd(acc[m][n], xv, wv[n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) sums<NR>(acc[m], out + m * ldo, extra.add);
}

constexpr int MAX_MR = 6;

template <class T>
using DotTile = void (*)(const T*, int64_t, const T*, int64_t, int64_t, Extra, float*, int64_t);

// For MR rows of x and NR rows of w, NR 1, 4 or 8 (8 only up to 3 rows of x).
template <class T, int NR, int AHEAD_ROWS>
AM_INLINE DotTile<T> dot_tile_for(int64_t mr) {
  switch (mr) {
    case 1: return dot_tile<T, 1, NR, AHEAD_ROWS>;
    case 2: return dot_tile<T, 2, NR, AHEAD_ROWS>;
    case 3: return dot_tile<T, 3, NR, AHEAD_ROWS>;
    case 4: return dot_tile<T, 4, NR, AHEAD_ROWS>;
    case 5: return dot_tile<T, 5, NR, AHEAD_ROWS>;
    default: return dot_tile<T, 6, NR, AHEAD_ROWS>;
  }
}

template <class T>
AM_INLINE DotTile<T> wide_tile_for(int64_t mr, bool ahead) {
  switch (mr) {
    case 1: return ahead ? dot_tile<T, 1, 8, 8> : dot_tile<T, 1, 8, 0>;
    case 2: return ahead ? dot_tile<T, 2, 8, 8> : dot_tile<T, 2, 8, 0>;
    default: return ahead ? dot_tile<T, 3, 8, 8> : dot_tile<T, 3, 8, 0>;
  }
}

// out[M][N] (+)= x[M] . w[N].  While a group of rows is multiplied, what lies `ahead` elements
// further is asked for, 0 for nothing: each weight is read from memory once, and never waited for.
template <class T>
AM_INLINE void dots(const T* x, int64_t ldx, int64_t M, const T* w, int64_t ldw, int64_t N,
                    int64_t C, int64_t ahead, bool add, float* out, int64_t ldo) {
  const int64_t num_blocks = (M + MAX_MR - 1) / MAX_MR;
  const int64_t ahead_rows = !ahead ? 0 : num_blocks == 1 ? 4 : num_blocks <= 3 ? 2 : 1;
  int64_t n = 0;
  if (M <= 3) {
    DotTile<T> tile = wide_tile_for<T>(M, ahead != 0);
    for (; n + 8 <= N; n += 8) tile(x, ldx, w + n * ldw, ldw, C, {ahead, add}, out + n, ldo);
  }
  for (; n + 4 <= N; n += 4) {
    for (int64_t i = 0; i < num_blocks; i++) {
      const int64_t m = M * i / num_blocks, mr = M * (i + 1) / num_blocks - m;
      const int64_t rows = i * ahead_rows < 4 ? ahead_rows : 0;
      DotTile<T> tile = rows == 4   ? dot_tile_for<T, 4, 4>(mr)
                        : rows == 2 ? dot_tile_for<T, 4, 2>(mr)
                        : rows == 1 ? dot_tile_for<T, 4, 1>(mr)
                                    : dot_tile_for<T, 4, 0>(mr);
      tile(x + m * ldx, ldx, w + n * ldw, ldw, C, {ahead + i * rows * ldw, add},
           out + m * ldo + n, ldo);
    }
  }
  for (; n < N; n++) {
    for (int64_t i = 0; i < num_blocks; i++) {
      const int64_t m = M * i / num_blocks, mr = M * (i + 1) / num_blocks - m;
      dot_tile_for<T, 1, 0>(mr)(x + m * ldx, ldx, w + n * ldw, ldw, C, {0, add},
                                out + m * ldo + n, ldo);
    }
  }
}

}  // namespace AM_ISA
