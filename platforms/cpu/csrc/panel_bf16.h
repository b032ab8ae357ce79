// Panels of bfloat16: two channels of 16 rows a line, the way the instruction multiplies them.
//
// Legend: M tokens, N outputs, C channels, an even number.
#pragma once

#include "gemm.h"
#include "linear.h"
#include "panel_pack.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

constexpr int64_t BF16_MR = 12;       // tokens at a time: with two lines, what the registers hold
constexpr int64_t BF16_DEPTH = 384;   // channels whose lines stay in the first cache
constexpr int64_t BF16_TOKENS = 240;  // whose activations stay in the second cache

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
                                         bool first, bool add, float* sums) {
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
  const int64_t ahead = first ? 4096 : 0;  // blocks of tokens after the first find the weights near
  int64_t c = 0;
  for (; c + 2 * U <= C; c += 2 * U) {
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {
      prefetch(p + 64 * (c + 2 * u) + ahead);
      prefetch(p + 64 * (c + 2 * u) + ahead + 64);
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
                         bool first, bool add, float* sums) {
  unrolled<1, int(BF16_MR) + 1>([&](auto i) __attribute__((always_inline)) {
    constexpr int MR = decltype(i)::value, U = MR == 1 ? 4 : MR <= 4 ? 2 : 1;
    if (mr == MR) bf16_dots<MR, U>(p, C, x, ldx, first, add, sums);
  });
}

AM_INLINE void bf16_product(const uint8_t* p, int64_t C, const bf16* x, int64_t M, float* sums) {
  const int64_t num_blocks = (M + BF16_MR - 1) / BF16_MR;
  const int64_t depth = num_blocks == 1 ? C : BF16_DEPTH;
  for (int64_t c = 0; c < C; c += depth) {
    const int64_t size = C - c < depth ? C - c : depth;
    for (int64_t b = 0; b < num_blocks; b++) {
      const int64_t m = M * b / num_blocks, mr = M * (b + 1) / num_blocks - m;
      bf16_rows(p + 64 * c, size, x + m * C + c, C, mr, b == 0, c > 0, sums + m * PANEL_ROWS);
    }
  }
}

inline void linear_bf16_panels(bf16* y, const bf16* x, const uint8_t* w, const bf16* bias,
                               int64_t M, int64_t N, int64_t C) {
  const int64_t count = (N + PANEL_ROWS - 1) / PANEL_ROWS, bytes = C * 2 * PANEL_ROWS;
  const int64_t fair = count / (int64_t(allmetal::num_threads) * 4);
  for (int64_t m = 0; m < M; m += BF16_TOKENS) {
    const int64_t size = M - m < BF16_TOKENS ? M - m : BF16_TOKENS;
    parallel(count, fair < 1 ? 1 : fair > 16 ? 16 : fair, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[BF16_TOKENS * PANEL_ROWS];
      for (int64_t i = begin; i < end; i++) {
        const int64_t n = i * PANEL_ROWS, rows = N - n < PANEL_ROWS ? N - n : PANEL_ROWS;
        bf16_product(w + i * bytes, C, x + m * C, size, sums);
        for (int64_t k = 0; k < size; k++)
          finish<bf16>(sums + k * PANEL_ROWS, rows, nullptr, bias ? bias + n : nullptr,
                       y + (m + k) * N + n);
      }
    });
  }
}

#endif

}  // namespace AM_ISA
