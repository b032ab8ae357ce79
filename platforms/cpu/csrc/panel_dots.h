// Few tokens against panels, in integers.
//
// Legend: M tokens, N outputs, C channels.
#pragma once

#include "gemm.h"
#include "panel_strips.h"
#include "panel_tokens.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

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
__attribute__((noinline)) void panel_dots(const uint8_t* p, int64_t spans, Place x, Ahead soon,
                                          bool add, float* sums) {
  constexpr int GROUPS = P::CHANNELS / P::GROUP, STEPS = P::GROUP < 32 ? P::GROUP / 4 : 8;
  const int8_t* planes = x.planes;
  const Share* shares = x.shares;
  __m512 acc[MR][2] = {};
  for (int64_t i = 0; i < spans; i++, p += 2 * P::BYTES) {
    __m512 scale[2][GROUPS], min[2][GROUPS];
    for (int h = 0; h < 2; h++) middle_shares<P>(p + h * P::BYTES, scale[h], min[h]);
    for (int unit = 0; unit < GROUPS / P::UNIT; unit++) {
      for (int64_t at = 0; at < soon.bytes; at += 64) prefetch(soon.at + at);
      soon.at += soon.bytes;
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
AM_INLINE void panel_rows(const uint8_t* p, int64_t spans, const Place& x, int64_t mr, Ahead soon,
                          bool add, float* sums) {
  unrolled<0, int(PANEL_MR<PLANES>)>([&](auto i) __attribute__((always_inline)) {
    constexpr int MR = decltype(i)::value + 1;
    if (mr == MR) panel_dots<P, PLANES, MR>(p, spans, x, soon, add, sums);
  });
}

// ---- a panel's pieces as bytes, decoded once for several blocks of tokens

template <int G, bool MIN>
struct BytePanel {
  static constexpr int CHANNELS = G, GROUP = G, UNIT = 1, OFFSET = 0, HEAD = MIN ? 128 : 64;
  static constexpr int BYTES = HEAD + 16 * CHANNELS;
  static constexpr bool SCALED = true, HAS_MIN = MIN;
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512* min) {
    scale[0] = _mm512_load_ps(p);
    if (MIN) min[0] = _mm512_load_ps(p + 64);
  }
  template <int, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int) {
    return line(p + HEAD, J);
  }
};

template <class P>
using BytesOf = BytePanel<P::GROUP, P::HAS_MIN>;

template <class P>
__attribute__((noinline)) void to_bytes(const uint8_t* p, int64_t spans, uint8_t* out) {
  typedef BytesOf<P> B;
  constexpr int GROUPS = P::CHANNELS / P::GROUP;
  for (int64_t i = 0; i < 2 * spans; i++, p += P::BYTES) {
    uint8_t* to = out + (i / 2 * GROUPS * 2 + i % 2) * B::BYTES;
    __m512 scale[GROUPS], min[GROUPS];
    middle_shares<P>(p, scale, min);
    for (int unit = 0; unit < GROUPS / P::UNIT; unit++) {
      unrolled<0, P::UNIT>([&](auto g) __attribute__((always_inline)) {
        constexpr int G = decltype(g)::value;
        const int at = unit * P::UNIT + G;
        uint8_t* group = to + at * 2 * B::BYTES;
        _mm512_store_ps(group, scale[at]);
        if (P::HAS_MIN) _mm512_store_ps(group + 64, min[at]);
        unrolled<0, P::GROUP / 4>([&](auto j) __attribute__((always_inline)) {
          constexpr int J = decltype(j)::value;
          _mm512_store_si512(group + B::HEAD + 64 * J, P::template codes<G, J>(p, unit, 0));
        });
      });
    }
  }
}

// sums[token - m0] += what the low planes of those among M tokens add.
template <class P>
__attribute__((noinline)) void add_outliers(const uint8_t* panel, const Outlier* some,
                                            const Outlier* end, int64_t m0, int64_t M,
                                            float* sums) {
  constexpr int GROUPS = P::CHANNELS / P::GROUP, STEPS = P::GROUP / 4;
  const __m512i offset = _mm512_set1_epi8(char(P::OFFSET));
  __m512 scale[2][GROUPS], min[2][GROUPS];
  __m512i u[2][STEPS];
  for (int32_t decoded = -1; some < end; some++) {
    if (some->token < m0 || some->token >= m0 + M) continue;
    const int at = some->group % GROUPS, unit = at / P::UNIT;
    if (some->group != decoded) {
      decoded = some->group;
      for (int h = 0; h < 2; h++) {
        const uint8_t* p = panel + (some->group / GROUPS * 2 + h) * P::BYTES;
        P::shares(p, scale[h], min[h]);
        unrolled<0, P::UNIT>([&](auto g) __attribute__((always_inline)) {
          constexpr int G = decltype(g)::value;
          if (G != at % P::UNIT) return;
          unrolled<0, STEPS>([&](auto j) __attribute__((always_inline)) {
            constexpr int J = decltype(j)::value;
            u[h][J] = P::template codes<G, J>(p, unit, 0);
          });
        });
      }
    }
    __m512i sum[2] = {}, less = _mm512_setzero_si512();
    for (int j = 0; j < STEPS; j++) {
      const __m512i four = four_channels(some->low + 4 * j);
      add_products(sum[0], u[0][j], four);
      add_products(sum[1], u[1][j], four);
      add_products(less, offset, four);
    }
    for (int h = 0; h < 2; h++) {
      float* to = sums + (some->token - m0) * PANEL_ROWS + h * LANES;
      const __m512 v = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[h], less));
      const __m512 by = _mm512_mul_ps(scale[h][at], _mm512_set1_ps(some->scale));
      _mm512_store_ps(to, _mm512_fmadd_ps(v, by, _mm512_load_ps(to)));
    }
  }
}

// Tokens from which it is worth while to decode a panel to bytes first.
template <class P>
constexpr int64_t EXPAND_FROM = P::GROUP < 32 || P::OFFSET == 16 ? 12 : P::HAS_MIN ? 24 : 1 << 20;

// ---- one panel, all tokens

// The panel's own bytes against a block of tokens.
template <class P, Rounding R>
AM_INLINE void part_product(const uint8_t* p, const Tokens<P, R>& x, int64_t m0, const Part& part,
                            float* sums) {
  constexpr int64_t span = 2 * P::BYTES, units = P::CHANNELS / (P::GROUP * P::UNIT);
  const uint8_t* at = p + part.span * span;
  const int64_t bytes = part.spans * span;
  const Ahead soon = part.share_of(at + part.reach(bytes), bytes, part.spans * units);
  panel_rows<P, PLANES_OF<R>>(at, part.spans, x.place(m0 + part.token, part.span), part.tokens,
                              soon, part.add, sums);
}

// The panel at p against tokens m0 .. m0 + M - 1 of x; done(token, tokens, sums [tokens][32]).
template <class P, Rounding R, class Done>
AM_INLINE void panel_product(const uint8_t* p, int64_t spans, const Tokens<P, R>& x, int64_t m0,
                             int64_t M, const Done& done) {
  constexpr int PLANES = PLANES_OF<R>;
  constexpr int64_t MR = PANEL_MR<PLANES>, span = 2 * P::BYTES;
  if constexpr (R == Rounding::GROUP) {
    auto seed = [&](int64_t m, int64_t size, float* sums) {
      if (x.begin() == x.end()) return false;
      memset(sums, 0, sizeof(float) * size * PANEL_ROWS);
      add_outliers<P>(p, x.begin(), x.end(), m0 + m, size, sums);
      return true;
    };
    typedef BytesOf<P> B;
    constexpr int64_t GROUPS = P::CHANNELS / P::GROUP, bytes = GROUPS * 2 * B::BYTES;
    if (M > EXPAND_FROM<P>) {
      thread_local Scratch scratch;
      uint8_t* expanded = static_cast<uint8_t*>(scratch.room(spans * bytes));
      to_bytes<P>(p, spans, expanded);
      in_strips<MR>(M, spans, PIECE / bytes, seed, [&](const Part& part, float* sums) {
        const Ahead soon = part.share_of(p + (spans + part.span) * span, part.spans * span,
                                         part.spans * GROUPS);
        panel_rows<B, PLANES>(expanded + part.span * bytes, part.spans * GROUPS,
                              x.place(m0 + part.token, part.span), part.tokens, soon, part.add,
                              sums);
      }, done);
      return;
    }
    in_strips<MR>(M, spans, PIECE / span, seed, [&](const Part& part, float* sums) {
      part_product(p, x, m0, part, sums);
    }, done);
  } else {
    auto seed = [](int64_t, int64_t, float*) { return false; };
    in_strips<MR>(M, spans, PIECE / span, seed, [&](const Part& part, float* sums) {
      part_product(p, x, m0, part, sums);
    }, done);
  }
}

// ---- many tokens: panels to tiles of bfloat16, as a product of those wants them

// Channels c .. c + size - 1 of the 32 rows at p; `out` is where the first row's go in the tile.
template <class P>
AM_INLINE void expand_panel(const uint8_t* p, int64_t size, bf16* out) {
  static_assert(!P::HAS_MIN, "of integers");
  constexpr int GROUPS = P::CHANNELS / P::GROUP, STEPS = P::GROUP < 32 ? P::GROUP / 4 : 8;
  alignas(64) static constexpr uint16_t ORDER[32] = {
      0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(ORDER), byte = _mm512_set1_epi32(255);
  for (int64_t c = 0; c < size; c += P::CHANNELS) {
    for (int h = 0; h < 2; h++, p += P::BYTES) {
      __m512 scale[GROUPS];
      P::shares(p, scale, nullptr);
      for (int unit = 0; unit < GROUPS / P::UNIT; unit++) {
        unrolled<0, P::UNIT>([&](auto g) __attribute__((always_inline)) {
          constexpr int G = decltype(g)::value;
          const int at = unit * P::UNIT + G;
          const __m512 by = P::SCALED ? scale[at] : _mm512_set1_ps(1);
          const __m512 less = _mm512_mul_ps(by, _mm512_set1_ps(P::OFFSET));
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
