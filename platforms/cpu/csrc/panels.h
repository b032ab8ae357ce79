// Weights of few bits in panels of 32 rows.  Four bytes of 16 rows lie side by side, one lane each,
// so that a product with four channels of a token, spread over the lanes, sums 16 outputs with no
// folding at the end; and a thread that walks through panels reads memory in order.
//
// A panel is a sequence of spans of channels, each twice: for rows 0 .. 15 and for rows 16 .. 31.
// Rows and channels are padded with zeros.  Within a span lie the scales, then the codes.
//
// Legend: N outputs, C channels.  u is a weight as an unsigned integer of at most 8 bits, OFFSET the
// middle of them; value = (u - OFFSET) * scale - minimum.  What the formats subtract is moved to the
// middle, so that the larger part of a group of weights that are all alike is the minimum's, which
// is multiplied with the sum of the activations as they were before rounding.
#pragma once

#include "blocks.h"

namespace AM_ISA {

constexpr int64_t LANES = 16, PANEL_ROWS = 2 * LANES;

// Numbers of what is not GGML's: bits * 1000 + the group's channels, 0 for whole rows.
AM_INLINE constexpr int int_kind(int bits, int group) { return bits * 1000 + group; }

constexpr int BF16_KIND = int_kind(16, 0);

// C++17 has no templated lambdas to unroll with.
template <int I, int N, class F>
AM_INLINE void unrolled(const F& f) {
  if constexpr (I < N) {
    f(std::integral_constant<int, I>{});
    unrolled<I + 1, N>(f);
  }
}

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

AM_INLINE __m512i line(const uint8_t* p, int64_t i) { return _mm512_load_si512(p + 64 * i); }
AM_INLINE __m512 halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
AM_INLINE __m512i low_nibbles(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
AM_INLINE __m512i nibbles_at(__m512i x, bool high) {
  return low_nibbles(high ? _mm512_srli_epi32(x, 4) : x);
}
// (x & mask) | y
AM_INLINE __m512i joined(__m512i x, int mask, __m512i y) {
  return _mm512_ternarylogic_epi32(x, _mm512_set1_epi8(char(mask)), y, 0xea);
}

// Each kind of panel has
//   ACT8, whether models round activations to 8 bits with it; CHANNELS of a span, GROUP of them that
//   share a scale (or, of whole rows, that are summed in integers), UNIT groups that `codes` knows
//   apart when compiled, BYTES of 16 rows of a span;
//   shares(p, scale, min): those of the span's groups, a lane a row, min as the format has it;
//   codes<G, J>(p, unit, b): u of channels 32 b + 4 J .. + 3 of group G of the unit.

// Scales and minimums, these with OFFSET.
template <class P>
AM_INLINE void middle_shares(const uint8_t* p, __m512* scale, __m512* min) {
  P::shares(p, scale, min);
  if constexpr (P::HAS_MIN && P::OFFSET != 0) {
    for (int g = 0; g < P::CHANNELS / P::GROUP; g++)
      min[g] = _mm512_fnmadd_ps(_mm512_set1_ps(P::OFFSET), scale[g], min[g]);
  }
}

struct WholeRows {
  static constexpr bool SCALED = false, HAS_MIN = false, ACT8 = true;
  static AM_INLINE void shares(const uint8_t*, __m512*, __m512*) {}
};

struct OneScale {
  static constexpr bool SCALED = true, HAS_MIN = false, ACT8 = true;
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512*) {
    scale[0] = _mm512_load_ps(p);
  }
};

// G 0: whole rows
template <int G>
struct Int8Panel : std::conditional_t<G == 0, WholeRows, OneScale> {
  static constexpr int KIND = int_kind(8, G), OFFSET = 128, UNIT = 1;
  static constexpr int GROUP = G ? G : 128, CHANNELS = GROUP, HEAD = G ? 64 : 0;
  static constexpr int BYTES = HEAD + 16 * CHANNELS;
  template <int, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int b) {
    return line(p + HEAD, 8 * b + J);
  }
};

template <int G>
struct Int4Panel : std::conditional_t<G == 0, WholeRows, OneScale> {
  static constexpr int KIND = int_kind(4, G), OFFSET = 8, UNIT = 1;
  static constexpr int GROUP = G ? G : 128, CHANNELS = GROUP, HEAD = G ? 64 : 0;
  static constexpr int BYTES = HEAD + 8 * CHANNELS;
  template <int, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int b) {
    return nibbles_at(line(p + HEAD, 4 * b + J % 4), J >= 4);
  }
};

// Two blocks of 32 channels; halves of both first.
template <class F>
struct SmallPanel {
  static constexpr int CHANNELS = 64, GROUP = 32, UNIT = 2, BYTES = 2 * 16 * F::BYTES;
  static constexpr bool SCALED = true, HAS_MIN = F::HAS_MIN, ACT8 = false;
  static constexpr int HEAD = F::HAS_MIN ? 128 : 64;
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512* min) {
    for (int g = 0; g < 2; g++) {
      scale[g] = halves(p + 32 * g);
      if (F::HAS_MIN) min[g] = -halves(p + 64 + 32 * g);
    }
  }
};

template <class F>
struct Panel;

template <>
struct Panel<Q8_0> : SmallPanel<Q8_0> {
  static constexpr int OFFSET = 128;
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int) {
    return line(p + HEAD, 8 * G + J);
  }
};

template <class F, int MINUS>
struct NibblePanel : SmallPanel<F> {
  static constexpr int OFFSET = MINUS;
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int) {
    return nibbles_at(line(p + NibblePanel::HEAD, 4 * G + J % 4), J >= 4);
  }
};

template <>
struct Panel<Q4_0> : NibblePanel<Q4_0, 8> {};
template <>
struct Panel<Q4_1> : NibblePanel<Q4_1, 8> {};

// A block's 32 fifth bits are one lane: those of channels 4 J .. are bits 4 J .. of it.
template <class F, int MINUS>
struct FifthPanel : SmallPanel<F> {
  static constexpr int OFFSET = MINUS;
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int) {
    const __m512i fifth = line(p + FifthPanel::HEAD, G);
    const __m512i four = nibbles_at(line(p + FifthPanel::HEAD + 128, 4 * G + J % 4), J >= 4);
    // Four bits to bit 4 of four bytes: a product puts copies a byte apart, less a bit each.
    const __m512i bits = _mm512_and_si512(_mm512_srli_epi32(fifth, 4 * J), _mm512_set1_epi32(15));
    const __m512i apart = _mm512_mullo_epi32(bits, _mm512_set1_epi32(0x00204081));
    return _mm512_or_si512(
        four, _mm512_slli_epi32(_mm512_and_si512(apart, _mm512_set1_epi8(1)), 4));
  }
};

template <>
struct Panel<Q5_0> : FifthPanel<Q5_0, 16> {};
template <>
struct Panel<Q5_1> : FifthPanel<Q5_1, 16> {};

// The lines of a block's dwords, in their order: halves, three of six-bit shares, the rest.
AM_INLINE void six_bit_lines(const uint8_t* p, __m512* scale, __m512* min) {
  const __m512i both = line(p, 0), first = line(p, 1), second = line(p, 2), third = line(p, 3);
  const __m512 d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
  const __m512 dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
  const __m512i six = _mm512_set1_epi32(63), four = _mm512_set1_epi32(15);
  auto times = [](__m512 by, __m512i x) __attribute__((always_inline)) {
    return _mm512_mul_ps(by, _mm512_cvtepi32_ps(x));
  };
  for (int i = 0; i < 4; i++) {
    const __m512i a = _mm512_srli_epi32(first, 8 * i), b = _mm512_srli_epi32(second, 8 * i);
    const __m512i c = _mm512_srli_epi32(third, 8 * i);
    const __m512i upper_a = _mm512_and_si512(_mm512_srli_epi32(a, 2), _mm512_set1_epi32(48));
    const __m512i upper_b = _mm512_and_si512(_mm512_srli_epi32(b, 2), _mm512_set1_epi32(48));
    scale[i] = times(d, _mm512_and_si512(a, six));
    min[i] = times(dmin, _mm512_and_si512(b, six));
    scale[i + 4] = times(d, _mm512_or_si512(_mm512_and_si512(c, four), upper_a));
    min[i + 4] = times(
        dmin, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(c, 4), four), upper_b));
  }
}

template <>
struct Panel<Q4_K> {
  static constexpr int CHANNELS = 256, GROUP = 32, UNIT = 2, OFFSET = 8, BYTES = 16 * 144;
  static constexpr bool SCALED = true, HAS_MIN = true, ACT8 = false;
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512* min) {
    six_bit_lines(p, scale, min);
  }
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int unit, int) {
    return nibbles_at(line(p, 4 + 8 * unit + J), G);
  }
};

template <>
struct Panel<Q5_K> {
  static constexpr int CHANNELS = 256, GROUP = 32, UNIT = 8, OFFSET = 16, BYTES = 16 * 176;
  static constexpr bool SCALED = true, HAS_MIN = true, ACT8 = false;
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512* min) {
    six_bit_lines(p, scale, min);
  }
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int, int) {
    const __m512i fifth = line(p, 4 + J), four = nibbles_at(line(p, 12 + G / 2 * 8 + J), G % 2);
    return joined(G < 4 ? _mm512_slli_epi32(fifth, (4 - G) & 7)
                        : _mm512_srli_epi32(fifth, (G - 4) & 7),
                  16, four);
  }
};

template <>
struct Panel<Q6_K> {
  static constexpr int CHANNELS = 256, GROUP = 16, UNIT = 8, OFFSET = 32, BYTES = 53 * 64;
  static constexpr bool SCALED = true, HAS_MIN = false, ACT8 = false;
  // Lines: 32 of low nibbles, 16 of high pairs, 4 of scales, then halves.
  static AM_INLINE void shares(const uint8_t* p, __m512* scale, __m512*) {
    const __m512 d = halves(p + 52 * 64);
    for (int i = 0; i < 4; i++) {
      const __m512i four = line(p, 48 + i);
      for (int j = 0; j < 4; j++) {
        const __m512i one = _mm512_srai_epi32(_mm512_slli_epi32(four, 24 - 8 * j), 24);
        scale[4 * i + j] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(one));
      }
    }
  }
  template <int G, int J>
  static AM_INLINE __m512i codes(const uint8_t* p, int unit, int) {
    constexpr int field = G / 2, at = G % 2 * 4 + J;
    const __m512i low = nibbles_at(line(p, 16 * unit + field % 2 * 8 + at), field >= 2);
    const __m512i high = line(p, 32 + 8 * unit + at);
    return joined(field < 2 ? _mm512_slli_epi32(high, (4 - 2 * field) & 7)
                            : _mm512_srli_epi32(high, (2 * field - 4) & 7),
                  48, low);
  }
};

#endif

}  // namespace AM_ISA
