// Few tokens against panels, in integers.
//
// Legend: M tokens, N outputs, C channels.
#pragma once

#include "gemm.h"
#include "panel_tokens.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

constexpr int64_t PANEL_AHEAD = 4096;  // bytes that are asked for before they are used

// sum += u . x of each four bytes.  With its own intrinsic GCC 12 copies the sum at each call.
AM_INLINE void add_products(__m512i& sum, __m512i u, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
}

AM_INLINE __m512i four_channels(const int8_t* x) {
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}

// sums[m][r] (+)= x[m] . w[r] for the 32 rows at p and MR tokens.
template <class P, int PLANES, int MR>
__attribute__((noinline)) void panel_dots(const uint8_t* p, int64_t spans, Place x, bool first,
                                          bool add, float* sums) {
  constexpr int GROUPS = P::CHANNELS / P::GROUP, STEPS = P::GROUP < 32 ? P::GROUP / 4 : 8;
  const int8_t* planes = x.planes;
  const Share* shares = x.shares;
  __m512 acc[MR][2] = {};
  for (int64_t i = 0; i < spans; i++, p += 2 * P::BYTES) {
    __m512 scale[2][GROUPS], min[2][GROUPS];
    for (int h = 0; h < 2; h++) P::shares(p + h * P::BYTES, scale[h], min[h]);
    for (int unit = 0; unit < GROUPS / P::UNIT; unit++) {
      constexpr int64_t bytes = 2 * P::BYTES / (GROUPS / P::UNIT);
      // Blocks of tokens after the first find the weights near.
      for (int64_t at = 0; at < (first ? bytes : 0); at += 64)
        prefetch(p + PANEL_AHEAD + unit * bytes + at);
      unrolled<0, P::UNIT>([&](auto g) __attribute__((always_inline)) {
        constexpr int G = decltype(g)::value;
        __m512i sum[PLANES][MR][2];
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
#pragma GCC unroll 2
          for (int h = 0; h < 2; h++) {
            for (int i = 0; i < PLANES - 1; i++) sum[i][m][h] = _mm512_setzero_si512();
            sum[PLANES - 1][m][h] = _mm512_set1_epi32(shares[m * x.to_shares].start);
          }
        }
        for (int b = 0; b < (P::GROUP + 31) / 32; b++) {
          unrolled<0, STEPS>([&](auto j) __attribute__((always_inline)) {
            constexpr int J = decltype(j)::value;
            const __m512i u0 = P::template codes<G, J>(p, unit, b);
            const __m512i u1 = P::template codes<G, J>(p + P::BYTES, unit, b);
#pragma GCC unroll 8
            for (int m = 0; m < MR; m++) {
#pragma GCC unroll 2
              for (int i = 0; i < PLANES; i++) {
                const int8_t* at = planes + m * x.to_planes + i * P::GROUP + 32 * b + 4 * J;
                const __m512i four = four_channels(at);
                add_products(sum[i][m][0], u0, four);
                add_products(sum[i][m][1], u1, four);
              }
            }
          });
        }
        const int at = unit * P::UNIT + G;
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
          const Share& share = shares[m * x.to_shares];
#pragma GCC unroll 2
          for (int h = 0; h < 2; h++) {
            __m512i whole = sum[PLANES - 1][m][h];
            if (PLANES == 2) whole = _mm512_add_epi32(whole, _mm512_slli_epi32(sum[0][m][h], 8));
            const __m512 by = _mm512_set1_ps(share.scale);
            const __m512 v = _mm512_cvtepi32_ps(whole);
            __m512& to = acc[m][h];
            to = P::SCALED ? _mm512_fmadd_ps(_mm512_mul_ps(v, by), scale[h][at], to)
                           : _mm512_fmadd_ps(v, by, to);
            if (P::HAS_MIN) to = _mm512_fnmadd_ps(min[h][at], _mm512_set1_ps(share.sum), to);
          }
        }
        planes += PLANES * P::GROUP;
        shares++;
      });
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
    for (int h = 0; h < 2; h++) {
      float* at = sums + m * PANEL_ROWS + h * LANES;
      _mm512_store_ps(at, add ? _mm512_add_ps(acc[m][h], _mm512_load_ps(at)) : acc[m][h]);
    }
  }
}

template <int PLANES>
constexpr int64_t PANEL_MR = PLANES == 2 ? 4 : 6;  // what the registers hold

template <class P, int PLANES>
AM_INLINE void panel_rows(const uint8_t* p, int64_t spans, const Place& x, int64_t mr, bool first,
                          bool add, float* sums) {
  unrolled<0, int(PANEL_MR<PLANES>)>([&](auto i) __attribute__((always_inline)) {
    constexpr int MR = decltype(i)::value + 1;
    if (mr == MR) panel_dots<P, PLANES, MR>(p, spans, x, first, add, sums);
  });
}

// sums[m][r] = x[m] . w[r] for the panel at p and M tokens.  Where several blocks of tokens need
// the same weights, these are taken in pieces that stay in the first cache.
template <class P, int PLANES>
AM_INLINE void panel_product(const uint8_t* p, int64_t spans, const Tokens<P, PLANES>& x,
                             int64_t m0, int64_t M, float* sums) {
  constexpr int64_t most = 24576 / (2 * P::BYTES) ? 24576 / (2 * P::BYTES) : 1;
  const int64_t num_blocks = (M + PANEL_MR<PLANES> - 1) / PANEL_MR<PLANES>;
  const int64_t step = num_blocks == 1 ? spans : most;
  for (int64_t s = 0; s < spans; s += step) {
    const int64_t size = spans - s < step ? spans - s : step;
    for (int64_t b = 0; b < num_blocks; b++) {
      const int64_t m = M * b / num_blocks, mr = M * (b + 1) / num_blocks - m;
      panel_rows<P, PLANES>(p + s * 2 * P::BYTES, size, x.place(m0 + m, s), mr, b == 0,
                            s > 0, sums + m * PANEL_ROWS);
    }
  }
}

// ---- many tokens: panels to tiles of bfloat16, as a product of those wants them

// Channels c .. c + size - 1 of the 32 rows at p; `out` is where the first row's go in the tile.
template <class P>
AM_INLINE void expand_panel(const uint8_t* p, int64_t size, bf16* out) {
  constexpr int GROUPS = P::CHANNELS / P::GROUP, STEPS = P::GROUP < 32 ? P::GROUP / 4 : 8;
  alignas(64) static constexpr uint16_t ORDER[32] = {
      0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(ORDER), byte = _mm512_set1_epi32(255);
  for (int64_t c = 0; c < size; c += P::CHANNELS) {
    for (int h = 0; h < 2; h++, p += P::BYTES) {
      __m512 scale[GROUPS], min[GROUPS];
      P::shares(p, scale, min);
      for (int unit = 0; unit < GROUPS / P::UNIT; unit++) {
        unrolled<0, P::UNIT>([&](auto g) __attribute__((always_inline)) {
          constexpr int G = decltype(g)::value;
          const int at = unit * P::UNIT + G;
          const __m512 by = P::SCALED ? scale[at] : _mm512_set1_ps(1);
          const __m512 less = P::HAS_MIN ? min[at] : _mm512_mul_ps(by, _mm512_set1_ps(P::OFFSET));
          for (int b = 0; b < (P::GROUP + 31) / 32; b++) {
            unrolled<0, STEPS>([&](auto j) __attribute__((always_inline)) {
              constexpr int J = decltype(j)::value;
              const __m512i u = P::template codes<G, J>(p, unit, b);
              auto channel = [&](__m512i x) __attribute__((always_inline)) {
                return _mm512_fmsub_ps(_mm512_cvtepi32_ps(_mm512_and_si512(x, byte)), by, less);
              };
              auto pair = [&](__m512 even, __m512 odd, bf16* to) __attribute__((always_inline)) {
                const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
                _mm512_store_si512(to, _mm512_permutexvar_epi16(order, both));
              };
              bf16* to = out + (c + at * P::GROUP + 32 * b + 4 * J) * COLUMNS + 2 * LANES * h;
              pair(channel(u), channel(_mm512_srli_epi32(u, 8)), to);
              pair(channel(_mm512_srli_epi32(u, 16)), channel(_mm512_srli_epi32(u, 24)),
                   to + 2 * COLUMNS);
            });
          }
        });
      }
    }
  }
}

#endif

}  // namespace AM_ISA
