// From a checkpoint's rows to panels, once at load.
#pragma once

#include "gemm.h"
#include "panels.h"
#include "parallel.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

// The same place in 16 rows; null where there is no row.
struct Sixteen {
  const uint8_t* at[LANES];

  AM_INLINE Sixteen operator+(int64_t bytes) const {
    Sixteen out;
    for (int r = 0; r < LANES; r++) out.at[r] = at[r] ? at[r] + bytes : nullptr;
    return out;
  }
};

// `count` dwords of each row, a line each.
AM_INLINE void put_lines(const Sixteen& rows, int count, uint8_t* out) {
  alignas(64) static const uint8_t none[64] = {};
  for (int i = 0; i < count; i += 16) {
    const int some = count - i < 16 ? count - i : 16;
    const __mmask16 kept = __mmask16((1u << some) - 1);
    __m512i r[16];
    for (int j = 0; j < 16; j++)
      r[j] = _mm512_maskz_loadu_epi32(kept, rows.at[j] ? rows.at[j] + 4 * i : none);
    transpose16(r);
    for (int j = 0; j < some; j++) _mm512_storeu_si512(out + 64 * (i + j), r[j]);
  }
}

// Two bytes of each row, side by side.
AM_INLINE void put_halves(const Sixteen& rows, uint8_t* out) {
  for (int r = 0; r < LANES; r++) {
    if (rows.at[r]) memcpy(out + 2 * r, rows.at[r], 2);
    else memset(out + 2 * r, 0, 2);
  }
}

// ---- GGML's blocks; `blocks` of the span's are there, the rest of it is zeros

template <class F>
AM_INLINE void put_small_blocks(const Sixteen& rows, int blocks, uint8_t* out) {
  typedef Panel<F> P;
  constexpr int shares = F::HAS_MIN ? 4 : 2, rest = (F::BYTES - shares) / 4;
  memset(out, 0, P::BYTES);
  for (int g = 0; g < blocks; g++) {
    const Sixteen block = rows + g * F::BYTES;
    put_halves(block, out + 32 * g);
    if (F::HAS_MIN) put_halves(block + 2, out + 64 + 32 * g);
    uint8_t* lines = out + P::HEAD;
    if (rest == 5) {  // a line of fifth bits, before both blocks' nibbles
      put_lines(block + shares, 1, lines + 64 * g);
      put_lines(block + shares + 4, 4, lines + 128 + 256 * g);
    } else {
      put_lines(block + shares, rest, lines + 64 * rest * g);
    }
  }
  if (rest == 8) {  // signed to unsigned
    for (int64_t i = P::HEAD; i < P::BYTES; i += 64) {
      const __m512i v = _mm512_xor_si512(line(out + i, 0), _mm512_set1_epi8(char(0x80)));
      _mm512_store_si512(out + i, v);
    }
  }
}

template <class F>
struct PutBlocks {
  typedef Panel<F> P;
  static AM_INLINE void put(const Sixteen& rows, int64_t channels, uint8_t* out) {
    if constexpr (F::ELEMENTS == 32) {
      put_small_blocks<F>(rows, int(channels / 32), out);
    } else if constexpr (std::is_same_v<F, Q6_K>) {
      put_lines(rows, 52, out);
      put_halves(rows + 208, out + 52 * 64);
      memset(out + 52 * 64 + 32, 0, 32);
    } else {
      put_lines(rows, F::BYTES / 4, out);
    }
  }
};

template <class F>
AM_INLINE void pack_blocks(uint8_t* out, const uint8_t* w, int64_t N, int64_t C) {
  typedef Panel<F> P;
  const int64_t spans = (C + P::CHANNELS - 1) / P::CHANNELS;
  const int64_t row = C / F::ELEMENTS * F::BYTES;
  constexpr int64_t step = int64_t(P::CHANNELS) / F::ELEMENTS * F::BYTES;
  const int64_t halves = (N + PANEL_ROWS - 1) / PANEL_ROWS * 2;
  parallel(halves, 2, [=](int64_t begin, int64_t end) {
    for (int64_t half = begin; half < end; half++) {
      Sixteen rows;
      for (int64_t r = 0; r < LANES; r++)
        rows.at[r] = half * LANES + r < N ? w + (half * LANES + r) * row : nullptr;
      uint8_t* to = out + (half / 2 * spans * 2 + half % 2) * P::BYTES;
      for (int64_t s = 0; s < spans; s++, to += 2 * P::BYTES) {
        const int64_t left = C - s * P::CHANNELS;
        PutBlocks<F>::put(rows + s * step, left < P::CHANNELS ? left : P::CHANNELS, to);
      }
    }
  });
}

// ---- integers of a byte each

// n bytes of a row, of which `there` are there, to codes in the order of P's lines.
template <int BITS>
AM_INLINE void to_codes(const int8_t* from, int64_t there, int64_t n, uint8_t* to) {
  constexpr int offset = 1 << (BITS - 1);
  auto code = [=](int64_t c) { return c < there ? uint8_t(from[c] + offset) : uint8_t(0); };
  if (BITS == 8) {
    for (int64_t c = 0; c < n; c++) to[c] = code(c);
    return;
  }
  for (int64_t c = 0; c < n; c += 32, to += 16) {
    for (int i = 0; i < 16; i++) to[i] = uint8_t(code(c + i) | code(c + 16 + i) << 4);
  }
}

template <class P, int BITS>
AM_INLINE void pack_ints(uint8_t* out, const int8_t* w, const float* scale, int64_t N, int64_t C) {
  constexpr int64_t row_bytes = P::CHANNELS * BITS / 8;
  const int64_t spans = (C + P::CHANNELS - 1) / P::CHANNELS;
  const int64_t halves = (N + PANEL_ROWS - 1) / PANEL_ROWS * 2;
  parallel(halves, 2, [=](int64_t begin, int64_t end) {
    alignas(64) uint8_t codes[LANES][row_bytes];
    for (int64_t half = begin; half < end; half++) {
      uint8_t* to = out + (half / 2 * spans * 2 + half % 2) * P::BYTES;
      for (int64_t s = 0; s < spans; s++, to += 2 * P::BYTES) {
        Sixteen rows;
        float scales[LANES] = {};
        for (int64_t r = 0; r < LANES; r++) {
          const int64_t n = half * LANES + r, c = s * P::CHANNELS;
          rows.at[r] = n < N ? codes[r] : nullptr;
          if (n >= N) continue;
          to_codes<BITS>(w + n * C + c, C - c, P::CHANNELS, codes[r]);
          if (P::SCALED) scales[r] = scale[n * spans + s];
        }
        if (P::SCALED) memcpy(to, scales, 64);
        put_lines(rows, row_bytes / 4, to + P::HEAD);
      }
    }
  });
}

#endif

}  // namespace AM_ISA
