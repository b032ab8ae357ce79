// How a panel meets many tokens: in strips of tokens whose sums stay in the first cache, beside a
// piece of the panel's channels that serves all of the strip's blocks of tokens.
//
// Legend: M tokens.
#pragma once

#include "linear.h"
#include "panels.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

constexpr int64_t STRIP = 96;     // tokens
constexpr int64_t PIECE = 24576;  // bytes of a panel
constexpr int64_t REACH = 4096;   // bytes that are asked for before they are used, where used once
constexpr int64_t NEAR = 400000;  // bytes of activations that stay in the second cache

// What is asked for early, so much with each step.
struct Ahead {
  const uint8_t* at = nullptr;
  int64_t bytes = 0;
};

// A block of tokens and a piece of spans: the first token, of how many, and so the spans.
struct Part {
  int64_t token, tokens, span, spans;
  int64_t block, blocks;  // of those that share the asking for what comes next; 0 of 0 if others do
  bool first, add;        // whether the piece is new to the strip; whether there are sums already

  // From this piece of so many bytes to what is asked for: a little further where a block is alone,
  // else the next piece, of which each block asks for a share.
  AM_INLINE int64_t reach(int64_t bytes) const { return blocks == 1 ? REACH : bytes; }

  // This block's share of `size` bytes from `at` on, over so many steps.
  AM_INLINE Ahead share_of(const uint8_t* at, int64_t size, int64_t steps) const {
    if (!blocks) return {at, 0};
    return {at + size * block / blocks, (size + blocks * steps - 1) / (blocks * steps)};
  }
};

// For each panel and each block of at most MR tokens: multiply(part, sums) for each piece of
// `most` spans, then done(token, tokens, sums).  seed(token, tokens, sums) first puts sums there, or
// returns false.
template <int64_t MR, class Seed, class Multiply, class Done>
AM_INLINE void in_strips(int64_t M, int64_t spans, int64_t most, const Seed& seed,
                         const Multiply& multiply, const Done& done) {
  constexpr int64_t blocks = STRIP / MR;
  alignas(64) float sums[STRIP * PANEL_ROWS];
  const int64_t num_blocks = (M + MR - 1) / MR;
  const int64_t step = num_blocks == 1 || most > spans ? spans : most < 1 ? 1 : most;
  for (int64_t b0 = 0; b0 < num_blocks; b0 += blocks) {
    const int64_t b1 = b0 + blocks < num_blocks ? b0 + blocks : num_blocks;
    const int64_t m0 = M * b0 / num_blocks;
    const bool seeded = seed(m0, M * b1 / num_blocks - m0, sums);
    for (int64_t s = 0; s < spans; s += step) {
      const int64_t size = spans - s < step ? spans - s : step;
      for (int64_t b = b0; b < b1; b++) {
        const int64_t m = M * b / num_blocks, mr = M * (b + 1) / num_blocks - m;
        float* at = sums + (m - m0) * PANEL_ROWS;
        const int64_t share = b0 ? 0 : b1;
        multiply(Part{m, mr, s, size, share ? b : 0, share, b == b0, s > 0 || seeded}, at);
        if (s + size == spans) done(m, mr, at);
      }
    }
  }
}

// All panels and all tokens, so many of these at a time, and whole blocks of MR, that their
// activations of `bytes` each stay near.
template <int64_t MR, class One>
AM_INLINE void over_panels(int64_t M, int64_t N, int64_t bytes, const One& one) {
  const int64_t count = (N + PANEL_ROWS - 1) / PANEL_ROWS;
  const int64_t fair = count / (int64_t(allmetal::num_threads) * 4);
  const int64_t near = NEAR / bytes / MR * MR, most = near < MR ? MR : near;
  for (int64_t m = 0; m < M; m += most) {
    const int64_t size = M - m < most ? M - m : most;
    parallel(count, fair < 1 ? 1 : fair > 16 ? 16 : fair, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; panel++) one(panel, m, size);
    });
  }
}

// Sums of a block of tokens to rows of y, which are N apart.
template <class T>
AM_INLINE void finish_block(const float* sums, int64_t mr, int64_t panel, int64_t N,
                            const float* scale, const T* bias, T* y) {
  const int64_t n = panel * PANEL_ROWS, rows = N - n < PANEL_ROWS ? N - n : PANEL_ROWS;
  for (int64_t k = 0; k < mr; k++)
    finish<T>(sums + k * PANEL_ROWS, rows, scale ? scale + n : nullptr, bias ? bias + n : nullptr,
              y + k * N + n);
}

#endif

}  // namespace AM_ISA
