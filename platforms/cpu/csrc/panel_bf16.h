// Panels of bfloat16: two channels of 16 rows a line, the way the instruction multiplies them.
//
// Legend: M tokens, N outputs, C channels, an even number.
#pragma once

#include "gemm.h"
#include "panel_pack.h"
#include "panel_strips.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

constexpr int64_t BF16_MR = 12;  // tokens at a time: with two lines, what the registers hold

inline void pack_bf16(uint8_t* out, const bf16* w, int64_t N, int64_t C) {
  const int64_t halves = (N + PANEL_ROWS - 1) / PANEL_ROWS * 2;
  parallel(halves, 2, [=](int64_t begin, int64_t end) {
    for (int64_t half = begin; half < end; half++) {
      Sixteen rows;
      for (int64_t r = 0; r < LANES; r++) {
        const int64_t n = half * LANES + r;
        rows.at[r] = n < N ? reinterpret_cast<const uint8_t*>(w + n * C) : nullptr;
      }
      uint8_t* to = out + half / 2 * (C * 2 * PANEL_ROWS) + half % 2 * 64;
      alignas(64) uint8_t lines[16 * 64];
      for (int64_t c = 0; c < C; c += 32) {
        const int count = int(C - c < 32 ? C - c : 32) / 2;
        put_lines(rows + 2 * c, count, lines);
        for (int i = 0; i < count; i++)
          _mm512_store_si512(to + (c / 2 + i) * 128, line(lines, i));
      }
    }
  });
}

// sums[m][r] (+)= x[m] . w[r] for the 32 rows at p and MR tokens.  U pairs of channels have sums of
// their own, so that one product need not wait for the one before.
template <int MR, int U>
__attribute__((noinline)) void bf16_dots(const uint8_t* p, int64_t C, const bf16* x, int64_t ldx,
                                         Ahead soon, bool add, float* sums) {
  f32 acc[U][MR][2] = {};
  auto step = [&](int64_t c, f32 (*to)[2]) __attribute__((always_inline)) {
    const __m512i w0 = line(p, c), w1 = line(p, c + 1);
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++) {
      const __m512i pair = Pack<bf16>::spread(x + m * ldx + c);
      to[m][0] = Pack<bf16>::madd(to[m][0], pair, w0);
      to[m][1] = Pack<bf16>::madd(to[m][1], pair, w1);
    }
  };
  int64_t c = 0;
  for (; c + 2 * U <= C; c += 2 * U) {
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {
      prefetch(soon.at);
      prefetch(soon.at + soon.bytes / 2);
      soon.at += soon.bytes;
      step(c + 2 * u, acc[u]);
    }
  }
  for (; c < C; c += 2) step(c, acc[0]);
#pragma GCC unroll 12
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      f32 sum = acc[0][m][h];
      for (int u = 1; u < U; u++) sum += acc[u][m][h];
      float* at = sums + m * PANEL_ROWS + h * LANES;
      store(at, add ? sum + load(at) : sum);
    }
  }
}

AM_INLINE void bf16_rows(const uint8_t* p, int64_t C, const bf16* x, int64_t ldx, int64_t mr,
                         Ahead soon, bool add, float* sums) {
  unrolled<1, int(BF16_MR) + 1>([&](auto i) __attribute__((always_inline)) {
    constexpr int MR = decltype(i)::value, U = MR == 1 ? 4 : MR <= 4 ? 2 : 1;
    if (mr == MR) bf16_dots<MR, U>(p, C, x, ldx, soon, add, sums);
  });
}

inline void linear_bf16_panels(bf16* y, const bf16* x, const uint8_t* w, const bf16* bias,
                               int64_t M, int64_t N, int64_t C) {
  constexpr int64_t pair = 2 * 2 * PANEL_ROWS;  // bytes
  auto seed = [](int64_t, int64_t, float*) { return false; };
  over_panels<BF16_MR>(M, N, 2 * C, [&](int64_t panel, int64_t m, int64_t size) {
    const uint8_t* p = w + panel * C / 2 * pair;
    in_strips<BF16_MR>(size, C / 2, PIECE / pair, seed, [&](const Part& part, float* sums) {
      const uint8_t* at = p + part.span * pair;
      const int64_t bytes = part.spans * pair;
      const Ahead soon = part.share_of(at + part.reach(bytes), bytes, part.spans);
      bf16_rows(at, 2 * part.spans, x + (m + part.token) * C + 2 * part.span, C, part.tokens, soon,
                part.add, sums);
    }, [&](int64_t token, int64_t count, const float* sums) {
      finish_block<bf16>(sums, count, panel, N, nullptr, bias, y + (m + token) * N);
    });
  });
}

#endif

}  // namespace AM_ISA
