// Products with quantised weights in integers, for few tokens: weights stay as narrow as they are,
// and activations become 16-bit integers of a scale a token, in two planes of 8 bits.  That is finer
// than bfloat16 for all but values far below the token's largest.
//
// Legend: M tokens, C channels.  u is a weight as an unsigned integer, value = u * scale - minimum.
#pragma once

#include <cstdlib>

#include "blocks.h"
#include "dot.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__)

constexpr int SPAN = 256;  // channels at a time: a block, or eight small ones

// sum += u . x of each four bytes.  GCC 12 would copy the sum for each of its own intrinsic's calls.
AM_INLINE void add_products(__m512i& sum, __m512i u, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
}

// ---- formats: u of 64 channels, and the scales and minimums of SPAN
//
// chunk(b, i) is u of channels 64 i .. 64 i + 63 of the span at b; share(b, n, scale, min) gives those
// of the span's n groups, and zeros for the rest.

AM_INLINE __m512i twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// The lower half shifted down by `low` bits and the upper by `high`; the mask is of each byte.
AM_INLINE __m512i shifted(__m512i x, int low, int high, int mask) {
  const __m512i by = _mm512_inserti64x4(_mm512_set1_epi16(short(low)),
                                        _mm256_set1_epi16(short(high)), 1);
  return _mm512_and_si512(_mm512_srlv_epi16(x, by), _mm512_set1_epi8(char(mask)));
}

// The scales and minimums of Q4_K and Q5_K; as `six_bits`, in registers.
AM_INLINE void six_bits_at(const uint8_t* b, __m512& scale, __m512& min) {
  uint32_t first, second, third;
  memcpy(&first, b + 4, 4);
  memcpy(&second, b + 8, 4);
  memcpy(&third, b + 12, 4);
  const uint32_t upper_scales = (third & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
  const uint32_t upper_mins = (third >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030);
  const __m128i bytes = _mm_set_epi32(int(upper_mins), int(second & 0x3f3f3f3f), int(upper_scales),
                                      int(first & 0x3f3f3f3f));
  const __m512 d = _mm512_mask_mov_ps(_mm512_set1_ps(half_to_float(b)), 0xff00,
                                      _mm512_set1_ps(half_to_float(b + 2)));
  const __m512 both = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)));
  scale = _mm512_maskz_mov_ps(0xff, both);
  min = _mm512_zextps256_ps512(_mm512_extractf32x8_ps(both, 1));
}

template <class F>
struct Ints {
  static constexpr bool HAS = false;
};

template <>
struct Ints<Q4_K> {
  static constexpr bool HAS = true;
  static constexpr int GROUP = 32;
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    return shifted(twice(b + 16 + 32 * i), 0, 4, 15);
  }
  static AM_INLINE void share(const uint8_t* b, int, __m512& scale, __m512& min) {
    six_bits_at(b, scale, min);
  }
};

template <>
struct Ints<Q5_K> {
  static constexpr bool HAS = true;
  static constexpr int GROUP = 32;
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    const __m512i fifth = shifted(twice(b + 16), 2 * i, 2 * i + 1, 1);
    return _mm512_or_si512(shifted(twice(b + 48 + 32 * i), 0, 4, 15), _mm512_slli_epi16(fifth, 4));
  }
  static AM_INLINE void share(const uint8_t* b, int, __m512& scale, __m512& min) {
    six_bits_at(b, scale, min);
  }
};

template <>
struct Ints<Q6_K> {
  static constexpr bool HAS = true;
  static constexpr int GROUP = 16;
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    const int half = i / 2, down = i % 2 * 4;
    const __m512i low = _mm512_loadu_si512(b + 64 * half);
    const __m512i high = shifted(twice(b + 128 + 32 * half), down, down + 2, 3);
    return _mm512_or_si512(shifted(low, down, down, 15), _mm512_slli_epi16(high, 4));
  }
  static AM_INLINE void share(const uint8_t* b, int, __m512& scale, __m512& min) {
    const __m512 d = _mm512_set1_ps(half_to_float(b + 208));
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 192));
    scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    min = _mm512_mul_ps(scale, _mm512_set1_ps(32));
  }
};

// Formats of 32 channels a block: two blocks make 64.
template <class F>
struct SmallBlocks {
  static constexpr bool HAS = true;
  static constexpr int GROUP = 32;

  // The halves at the beginning of n blocks.
  static AM_INLINE __m512 halves(const uint8_t* b, int n) {
    uint16_t h[8];
    for (int i = 0; i < 8; i++) memcpy(h + i, b + (i < n ? i : 0) * F::BYTES, 2);
    const __m128i all = _mm_set_epi16(short(h[7]), short(h[6]), short(h[5]), short(h[4]),
                                      short(h[3]), short(h[2]), short(h[1]), short(h[0]));
    return _mm512_maskz_mov_ps(__mmask16((1u << n) - 1),
                               _mm512_castps256_ps512(_mm256_cvtph_ps(all)));
  }
  // OFFSET: what is taken from u.
  template <int OFFSET>
  static AM_INLINE void share_offset(const uint8_t* b, int n, __m512& scale, __m512& min) {
    scale = halves(b, n);
    min = _mm512_mul_ps(scale, _mm512_set1_ps(OFFSET));
  }
  static AM_INLINE void share_min(const uint8_t* b, int n, __m512& scale, __m512& min) {
    scale = halves(b, n);
    min = _mm512_sub_ps(_mm512_setzero_ps(), halves(b + 2, n));
  }
  // Two runs of 16 bytes to 64 nibbles, the low ones of each run first.
  static AM_INLINE __m512i nibbles_at(const uint8_t* first, const uint8_t* second) {
    const __m512i one = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)first));
    const __m512i two = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)second));
    const __m512i both = _mm512_mask_mov_epi64(one, 0xf0, two);
    const __m512i by = _mm512_broadcast_i64x4(
        _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_set1_epi16(4), 1));
    return _mm512_and_si512(_mm512_srlv_epi16(both, by), _mm512_set1_epi8(15));
  }
  static AM_INLINE __m512i with_fifth(__m512i u, const uint8_t* first, const uint8_t* second) {
    uint32_t low, high;
    memcpy(&low, first, 4);
    memcpy(&high, second, 4);
    return _mm512_mask_add_epi8(u, uint64_t(high) << 32 | low, u, _mm512_set1_epi8(16));
  }
};

template <>
struct Ints<Q8_0> : SmallBlocks<Q8_0> {
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    b += 2 * i * Q8_0::BYTES + 2;
    const __m256i one = _mm256_loadu_si256((const __m256i*)b);
    const __m256i two = _mm256_loadu_si256((const __m256i*)(b + Q8_0::BYTES));
    return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(one), two, 1),
                            _mm512_set1_epi8(char(0x80)));
  }
  static AM_INLINE void share(const uint8_t* b, int n, __m512& scale, __m512& min) {
    share_offset<128>(b, n, scale, min);
  }
};

template <>
struct Ints<Q4_0> : SmallBlocks<Q4_0> {
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    b += 2 * i * Q4_0::BYTES + 2;
    return nibbles_at(b, b + Q4_0::BYTES);
  }
  static AM_INLINE void share(const uint8_t* b, int n, __m512& scale, __m512& min) {
    share_offset<8>(b, n, scale, min);
  }
};

template <>
struct Ints<Q4_1> : SmallBlocks<Q4_1> {
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    b += 2 * i * Q4_1::BYTES + 4;
    return nibbles_at(b, b + Q4_1::BYTES);
  }
  static AM_INLINE void share(const uint8_t* b, int n, __m512& scale, __m512& min) {
    share_min(b, n, scale, min);
  }
};

template <>
struct Ints<Q5_0> : SmallBlocks<Q5_0> {
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    b += 2 * i * Q5_0::BYTES + 2;
    return with_fifth(nibbles_at(b + 4, b + 4 + Q5_0::BYTES), b, b + Q5_0::BYTES);
  }
  static AM_INLINE void share(const uint8_t* b, int n, __m512& scale, __m512& min) {
    share_offset<16>(b, n, scale, min);
  }
};

template <>
struct Ints<Q5_1> : SmallBlocks<Q5_1> {
  static AM_INLINE __m512i chunk(const uint8_t* b, int i) {
    b += 2 * i * Q5_1::BYTES + 4;
    return with_fifth(nibbles_at(b + 4, b + 4 + Q5_1::BYTES), b, b + Q5_1::BYTES);
  }
  static AM_INLINE void share(const uint8_t* b, int n, __m512& scale, __m512& min) {
    share_min(b, n, scale, min);
  }
};

// ---- activations

// M tokens as integers.  Rows are padded with zeros to whole spans.
class IntTokens {
 public:
  template <class T>
  IntTokens(const T* x, int64_t M, int64_t C, int group) : spans_((C + SPAN - 1) / SPAN), group_(group) {
    const int64_t wide = spans_ * SPAN, groups = wide / group;
    planes_ = static_cast<int8_t*>(aligned_alloc(64, (2 * wide * M + 63) / 64 * 64));
    sums_ = static_cast<float*>(aligned_alloc(64, (groups * M * 4 + 63) / 64 * 64 + 64));
    for (int64_t m = 0; m < M; m++) take(x + m * C, C, m);
  }
  ~IntTokens() {
    free(planes_);
    free(sums_);
  }
  IntTokens(const IntTokens&) = delete;
  IntTokens& operator=(const IntTokens&) = delete;

  // Of each 64 channels 64 bytes of the high plane, then 64 of the low one.
  AM_INLINE const int8_t* planes(int64_t m) const { return planes_ + m * 2 * spans_ * SPAN; }
  // Of each group of channels, the integers' sum.
  AM_INLINE const float* sums(int64_t m) const { return sums_ + m * spans_ * (SPAN / group_); }
  AM_INLINE float scale(int64_t m) const { return scales_[m]; }
  // What weights that are 128 too large add to a sum.
  AM_INLINE float offset(int64_t m) const { return offsets_[m]; }
  static constexpr int64_t MOST = 64;

 private:
  template <class T>
  AM_INLINE void take(const T* x, int64_t C, int64_t m) {
    f32 most = {};
    int64_t c = 0;
    for (; c + W <= C; c += W) most = max(most, max(load(x + c), -load(x + c)));
    float top = largest(most);
    for (; c < C; c++) top = __builtin_fabsf(to_float(x[c])) > top ? __builtin_fabsf(to_float(x[c])) : top;
    // 127 * 256 + 127 is the largest that two signed planes hold, with room for rounding.
    scales_[m] = top / 32512.0f;
    const f32 by = broadcast(top > 0 ? 32512.0f / top : 0.0f);
    int8_t* to = planes_ + m * 2 * spans_ * SPAN;
    float* sums = sums_ + m * spans_ * (SPAN / group_);
    double total = 0;
    for (int64_t at = 0; at < spans_ * SPAN; at += W) {
      float some[W] = {};
      for (int64_t i = at; i < at + W && i < C; i++) some[i - at] = to_float(x[i]);
      const __m512i q = (__m512i)to_nearest((at + W <= C ? load(x + at) : load(some)) * by);
      const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
      const __m512i l = _mm512_sub_epi32(q, _mm512_slli_epi32(h, 8));
      int8_t* place = to + at / 64 * 128 + at % 64;
      _mm_store_si128((__m128i*)place, _mm512_cvtepi32_epi8(h));
      _mm_store_si128((__m128i*)(place + 64), _mm512_cvtepi32_epi8(l));
      const float part = float(_mm512_reduce_add_epi32(q));
      total += part;
      if (at % group_ == 0) {
        sums[at / group_] = part;
      } else {
        sums[at / group_] += part;
      }
    }
    offsets_[m] = float(128 * total);
  }

  int64_t spans_, group_;
  int8_t* planes_;
  float* sums_;
  float scales_[MOST];
  float offsets_[MOST];
};

// out[m * ldo] = w . x[m] for MR tokens from m0 on; one row of C channels in blocks of F.
template <class F, int MR>
__attribute__((noinline)) void int_row(const uint8_t* row, int64_t C, const IntTokens& x,
                                       int64_t m0, float* out, int64_t ldo) {
  typedef Ints<F> I;
  constexpr int GROUPS = SPAN / I::GROUP;
  const int8_t* planes[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) planes[m] = x.planes(m0 + m);
  __m512 acc[MR], off[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) acc[m] = off[m] = _mm512_setzero_ps();
  // Lane l of a chunk's sums belongs to group l * 4 / GROUP of the chunk.
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i of_chunk = _mm512_srli_epi32(lane, I::GROUP == 32 ? 3 : 2);
  constexpr int64_t span_bytes = int64_t(SPAN) / F::ELEMENTS * F::BYTES;
  for (int64_t c = 0, span = 0; c < C; c += SPAN, span++, row += span_bytes) {
    const int64_t channels = C - c < SPAN ? C - c : SPAN;
    for (int64_t line = 0; line < span_bytes; line += 64) prefetch(row + 2048 + line);
    __m512 scales, mins;
    I::share(row, int(channels / I::GROUP), scales, mins);
    const __mmask16 groups = GROUPS == 16 ? 0xffff : 0xff;
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      const __m512 sums = _mm512_maskz_loadu_ps(groups, x.sums(m0 + m) + span * GROUPS);
      off[m] = _mm512_fmadd_ps(mins, sums, off[m]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < SPAN / 64; i++) {
      if (channels <= 64 * i) break;
      __m512i u;
      if (F::ELEMENTS == 32 && channels < 64 * (i + 1)) {  // the row ends after one block
        uint8_t last[2 * F::BYTES] = {};
        memcpy(last, row + 2 * i * F::BYTES, F::BYTES);
        u = I::chunk(last, 0);
      } else {
        u = I::chunk(row, i);
      }
      const __m512i place =
          _mm512_add_epi32(of_chunk, _mm512_set1_epi32(i * (64 / I::GROUP)));
      const __m512 scale = _mm512_permutexvar_ps(place, scales);
#pragma GCC unroll 8
      for (int m = 0; m < MR; m++) {
        const __m512i high = _mm512_load_si512(planes[m] + 2 * c + 128 * i);
        const __m512i low = _mm512_load_si512(planes[m] + 2 * c + 128 * i + 64);
        __m512i sum = _mm512_setzero_si512();
        add_products(sum, u, high);
        sum = _mm512_slli_epi32(sum, 8);
        add_products(sum, u, low);
        acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[m]);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++)
    out[m * ldo] = _mm512_reduce_add_ps(_mm512_sub_ps(acc[m], off[m])) * x.scale(m0 + m);
}

template <class F>
AM_INLINE void int_rows(const uint8_t* row, int64_t C, const IntTokens& x, int64_t M, float* out,
                        int64_t ldo) {
  const int64_t num_blocks = (M + 7) / 8;
  for (int64_t i = 0; i < num_blocks; i++) {
    const int64_t m = M * i / num_blocks;
    float* to = out + m * ldo;
    switch (M * (i + 1) / num_blocks - m) {
      case 1: int_row<F, 1>(row, C, x, m, to, ldo); break;
      case 2: int_row<F, 2>(row, C, x, m, to, ldo); break;
      case 3: int_row<F, 3>(row, C, x, m, to, ldo); break;
      case 4: int_row<F, 4>(row, C, x, m, to, ldo); break;
      case 5: int_row<F, 5>(row, C, x, m, to, ldo); break;
      case 6: int_row<F, 6>(row, C, x, m, to, ldo); break;
      case 7: int_row<F, 7>(row, C, x, m, to, ldo); break;
      default: int_row<F, 8>(row, C, x, m, to, ldo); break;
    }
  }
}

// ---- whole rows of 8-bit integers, whose scale is the caller's

constexpr int64_t MAX_INT8_CHANNELS = 1 << 16;  // whose sums fit 32 bits

// out[m * ldo + n] = w[n] . x[m0 + m], the weights' scale left out.
template <int MR, int NR>
__attribute__((noinline)) void int8_tile(const int8_t* w, int64_t C, const IntTokens& x, int64_t m0,
                                         float* out, int64_t ldo) {
  const int8_t* planes[MR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) planes[m] = x.planes(m0 + m);
  __m512i high[MR][NR], low[MR][NR];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) high[m][n] = low[m][n] = _mm512_setzero_si512();
  }
  const __m512i flip = _mm512_set1_epi8(char(0x80));  // w + 128 is unsigned
  for (int64_t c = 0; c < C; c += 64) {
    const __mmask64 lanes = C - c < 64 ? (uint64_t(1) << (C - c)) - 1 : ~uint64_t(0);
    __m512i u[NR];
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) {
      u[n] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(lanes, w + n * C + c), flip);
      prefetch(w + (n + NR) * C + c);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      const __m512i h = _mm512_load_si512(planes[m] + 2 * c);
      const __m512i l = _mm512_load_si512(planes[m] + 2 * c + 64);
#pragma GCC unroll 8
      for (int n = 0; n < NR; n++) {
        add_products(high[m][n], u[n], h);
        add_products(low[m][n], u[n], l);
      }
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
    // Four sums at a time, of which the last may be none.
    f32 both[4] = {};
    float got[4];
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) {
      both[n] = (f32)_mm512_fmadd_ps(_mm512_cvtepi32_ps(high[m][n]), _mm512_set1_ps(256),
                                     _mm512_cvtepi32_ps(low[m][n]));
    }
    sums<4>(both, got, false);
#pragma GCC unroll 8
    for (int n = 0; n < NR; n++) out[m * ldo + n] = (got[n] - x.offset(m0 + m)) * x.scale(m0 + m);
  }
}

template <int NR>
AM_INLINE void int8_tiles(const int8_t* w, int64_t C, const IntTokens& x, int64_t M, float* out,
                          int64_t ldo) {
  const int64_t num_blocks = (M + 2) / 3;
  for (int64_t i = 0; i < num_blocks; i++) {
    const int64_t m = M * i / num_blocks;
    float* to = out + m * ldo;
    switch (M * (i + 1) / num_blocks - m) {
      case 1: int8_tile<1, NR>(w, C, x, m, to, ldo); break;
      case 2: int8_tile<2, NR>(w, C, x, m, to, ldo); break;
      default: int8_tile<3, NR>(w, C, x, m, to, ldo); break;
    }
  }
}

AM_INLINE void int8_rows(const int8_t* w, int64_t N, int64_t C, const IntTokens& x, int64_t M,
                         float* out, int64_t ldo) {
  int64_t n = 0;
  for (; n + 4 <= N; n += 4) int8_tiles<4>(w + n * C, C, x, M, out + n, ldo);
  for (; n < N; n++) int8_tiles<1>(w + n * C, C, x, M, out + n, ldo);
}

#endif

}  // namespace AM_ISA
