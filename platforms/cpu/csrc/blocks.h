// GGML's block formats: integers of up to 8 bits in groups that share a scale and, in some, a
// minimum.  value = integer * scale - minimum.
//
// Source: the block structs of ggml-common.h and dequantize_row_* of ggml-quants.c.
#pragma once

#include "vec.h"

namespace AM_ISA {

AM_INLINE float half_to_float(const uint8_t* p) {
  uint16_t bits;
  memcpy(&bits, p, 2);
#if defined(__F16C__)
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#else
  // Shifted into a float's place the exponent is short by 112, which a product mends, also for
  // denormals; infinities and NaNs get what is missing.
  uint32_t wide = uint32_t(bits & 0x7fff) << 13;
  float value;
  memcpy(&value, &wide, 4);
  value *= 5.192296858534828e33f;  // 2^112
  memcpy(&wide, &value, 4);
  if ((bits & 0x7c00) == 0x7c00) wide |= 0x7f800000;
  wide |= uint32_t(bits & 0x8000) << 16;
  memcpy(&value, &wide, 4);
  return value;
#endif
}

// A block taken apart.
struct Parts {
  alignas(64) int8_t q[256];
  float scale[16], min[16];
};

// The 6-bit scales and minimums of Q4_K and Q5_K.
AM_INLINE void six_bits(const uint8_t* block, Parts& p) {
  const float d = half_to_float(block), dmin = half_to_float(block + 2);
  const uint8_t *first = block + 4, *second = block + 8, *third = block + 12;
  for (int i = 0; i < 4; i++) {
    p.scale[i] = d * float(first[i] & 63);
    p.min[i] = dmin * float(second[i] & 63);
    p.scale[i + 4] = d * float((third[i] & 15) | ((first[i] >> 2) & 48));
    p.min[i + 4] = dmin * float((third[i] >> 4) | ((second[i] >> 2) & 48));
  }
}

// 16 bytes of two nibbles each, the low ones first, to 32 integers; with `fifth`, its 32 bits are
// the integers' fifth.
AM_INLINE void nibbles(const uint8_t* from, const uint8_t* fifth, int minus, int8_t* to) {
  uint32_t bits = 0;
  if (fifth) memcpy(&bits, fifth, 4);
#if defined(__AVX512F__)
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  __m256i q = _mm256_set_m128i(_mm_srli_epi16(raw, 4), raw);
  q = _mm256_and_si256(q, _mm256_set1_epi8(15));
  if (fifth) q = _mm256_mask_add_epi8(q, bits, q, _mm256_set1_epi8(16));
  q = _mm256_sub_epi8(q, _mm256_set1_epi8(char(minus)));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), q);
#else
  uint8_t raw[16], high[32];
  memcpy(raw, from, 16);  // a local, so that no store can touch it and the loops become vectors
  for (uint32_t i = 0; i < 32; i++) high[i] = uint8_t((bits >> i & 1) << 4);
  for (int i = 0; i < 16; i++) to[i] = int8_t((raw[i] & 15) + high[i] - minus);
  for (int i = 0; i < 16; i++) to[i + 16] = int8_t((raw[i] >> 4) + high[i + 16] - minus);
#endif
}

struct Q4_0 {
  static constexpr int ELEMENTS = 32, BYTES = 18, GROUP = 32;
  static constexpr bool HAS_MIN = false;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    p.scale[0] = half_to_float(b);
    nibbles(b + 2, nullptr, 8, p.q);
  }
};

struct Q4_1 {
  static constexpr int ELEMENTS = 32, BYTES = 20, GROUP = 32;
  static constexpr bool HAS_MIN = true;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    p.scale[0] = half_to_float(b);
    p.min[0] = -half_to_float(b + 2);
    nibbles(b + 4, nullptr, 0, p.q);
  }
};

struct Q5_0 {
  static constexpr int ELEMENTS = 32, BYTES = 22, GROUP = 32;
  static constexpr bool HAS_MIN = false;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    p.scale[0] = half_to_float(b);
    nibbles(b + 6, b + 2, 16, p.q);
  }
};

struct Q5_1 {
  static constexpr int ELEMENTS = 32, BYTES = 24, GROUP = 32;
  static constexpr bool HAS_MIN = true;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    p.scale[0] = half_to_float(b);
    p.min[0] = -half_to_float(b + 2);
    nibbles(b + 8, b + 4, 0, p.q);
  }
};

struct Q8_0 {
  static constexpr int ELEMENTS = 32, BYTES = 34, GROUP = 32;
  static constexpr bool HAS_MIN = false;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    p.scale[0] = half_to_float(b);
    memcpy(p.q, b + 2, 32);
  }
};

// GCC 12 makes wrong code of the two oldest formats for AVX2 where this is inlined (its pass ivopts
// does; the sanitizers find nothing).
#define AM_APART __attribute__((noinline))

struct Q2_K {
  static constexpr int ELEMENTS = 256, BYTES = 84, GROUP = 16;
  static constexpr bool HAS_MIN = true;
  static AM_APART void take_apart(const uint8_t* b, Parts& p) {
    const float d = half_to_float(b + 80), dmin = half_to_float(b + 82);
    for (int i = 0; i < 16; i++) {
      p.scale[i] = d * float(b[i] & 15);
      p.min[i] = dmin * float(b[i] >> 4);
    }
    for (int half = 0; half < 2; half++) {
      for (int field = 0; field < 4; field++) {
        for (int i = 0; i < 32; i++)
          p.q[half * 128 + field * 32 + i] = int8_t(b[16 + half * 32 + i] >> 2 * field & 3);
      }
    }
  }
};

struct Q3_K {
  static constexpr int ELEMENTS = 256, BYTES = 110, GROUP = 16;
  static constexpr bool HAS_MIN = false;
  static AM_APART void take_apart(const uint8_t* b, Parts& p) {
    const float d = half_to_float(b + 108);
    for (int i = 0; i < 16; i++) {
      const int four = i < 8 ? b[96 + i] & 15 : b[96 + i - 8] >> 4;
      const int two = b[104 + i % 4] >> 2 * (i / 4) & 3;
      p.scale[i] = d * float((four | two << 4) - 32);
    }
    for (int half = 0; half < 2; half++) {
      for (int field = 0; field < 4; field++) {
        const int bit = half * 4 + field;
        for (int i = 0; i < 32; i++) {
          const int low = b[32 + half * 32 + i] >> 2 * field & 3;
          p.q[half * 128 + field * 32 + i] = int8_t(low - ((b[i] >> bit & 1) ^ 1) * 4);
        }
      }
    }
  }
};

struct Q4_K {
  static constexpr int ELEMENTS = 256, BYTES = 144, GROUP = 32;
  static constexpr bool HAS_MIN = true;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    six_bits(b, p);
    for (int pair = 0; pair < 4; pair++) {
      for (int i = 0; i < 32; i++) {
        p.q[pair * 64 + i] = int8_t(b[16 + pair * 32 + i] & 15);
        p.q[pair * 64 + 32 + i] = int8_t(b[16 + pair * 32 + i] >> 4);
      }
    }
  }
};

struct Q5_K {
  static constexpr int ELEMENTS = 256, BYTES = 176, GROUP = 32;
  static constexpr bool HAS_MIN = true;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    six_bits(b, p);
    for (int pair = 0; pair < 4; pair++) {
      for (int i = 0; i < 32; i++) {
        const int low = b[48 + pair * 32 + i], high = b[16 + i];
        p.q[pair * 64 + i] = int8_t((low & 15) | (high >> 2 * pair & 1) << 4);
        p.q[pair * 64 + 32 + i] = int8_t((low >> 4) | (high >> (2 * pair + 1) & 1) << 4);
      }
    }
  }
};

struct Q6_K {
  static constexpr int ELEMENTS = 256, BYTES = 210, GROUP = 16;
  static constexpr bool HAS_MIN = false;
  static AM_INLINE void take_apart(const uint8_t* b, Parts& p) {
    const float d = half_to_float(b + 208);
    for (int i = 0; i < 16; i++) p.scale[i] = d * float(int8_t(b[192 + i]));
    for (int half = 0; half < 2; half++) {
      const uint8_t *low = b + half * 64, *high = b + 128 + half * 32;
      int8_t* q = p.q + half * 128;
      for (int i = 0; i < 32; i++) {
        q[i] = int8_t(((low[i] & 15) | (high[i] & 3) << 4) - 32);
        q[i + 32] = int8_t(((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4) - 32);
        q[i + 64] = int8_t(((low[i] >> 4) | (high[i] >> 4 & 3) << 4) - 32);
        q[i + 96] = int8_t(((low[i + 32] >> 4) | (high[i] >> 6) << 4) - 32);
      }
    }
  }
};

// n values, a multiple of the block's, from the block at `row` on.
template <class F, class T>
void decode_blocks(const uint8_t* row, int64_t n, T* out) {
  for (int64_t done = 0; done < n; done += F::ELEMENTS, row += F::BYTES, out += F::ELEMENTS) {
    Parts p;
    for (int line = 0; line < F::BYTES; line += 64) prefetch(row + 2048 + line);
    F::take_apart(row, p);
    for (int g = 0; g < F::ELEMENTS / F::GROUP; g++) {
      for (int i = 0; i < F::GROUP; i += W) {
        f32 v = load(p.q + g * F::GROUP + i) * p.scale[g];
        if (F::HAS_MIN) v -= p.min[g];
        store(out + g * F::GROUP + i, v);
      }
    }
  }
}

}  // namespace AM_ISA
