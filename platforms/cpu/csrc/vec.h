// One vector of floats per instruction set, as GCC and Clang vector types: arithmetic is written
// with operators, and only what operators cannot say is written per instruction set.
//
// Compiled once per instruction set: everything lives in namespace AM_ISA.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define AM_INLINE inline __attribute__((always_inline))

namespace AM_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float f32 __attribute__((vector_size(W * 4)));
typedef int32_t i32 __attribute__((vector_size(W * 4)));
typedef uint32_t u32 __attribute__((vector_size(W * 4)));
typedef float f32u __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef int32_t i32u __attribute__((vector_size(W * 4), aligned(2), may_alias));  // pairs of halves

typedef uint16_t bf16;  // the upper half of a float

AM_INLINE float to_float(float x) { return x; }
AM_INLINE float to_float(int8_t x) { return float(x); }
AM_INLINE float to_float(bf16 x) {
  uint32_t bits = uint32_t(x) << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

AM_INLINE void from_float(float x, float* out) { *out = x; }
AM_INLINE void from_float(float x, bf16* out) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    *out = bf16((bits >> 16) | 0x40);  // a NaN stays one
  } else {
    *out = bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
  }
}

AM_INLINE f32 broadcast(float x) { return x - f32{}; }
AM_INLINE i32 broadcast(int32_t x) { return x - i32{}; }

AM_INLINE f32 load(const float* p) { return *reinterpret_cast<const f32u*>(p); }
AM_INLINE void store(float* p, f32 x) { *reinterpret_cast<f32u*>(p) = x; }

#if defined(__AVX512F__)

AM_INLINE f32 load(const bf16* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}
AM_INLINE f32 load(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (f32)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
AM_INLINE void store(bf16* p, f32 x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  __m512i bits = (__m512i)x;
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
#endif
}
AM_INLINE f32 max(f32 a, f32 b) { return (f32)_mm512_max_ps((__m512)a, (__m512)b); }
AM_INLINE f32 min(f32 a, f32 b) { return (f32)_mm512_min_ps((__m512)a, (__m512)b); }
AM_INLINE float sum(f32 x) { return _mm512_reduce_add_ps((__m512)x); }
AM_INLINE float largest(f32 x) { return _mm512_reduce_max_ps((__m512)x); }
AM_INLINE i32 to_nearest(f32 x) { return (i32)_mm512_cvtps_epi32((__m512)x); }
AM_INLINE f32 to_f32(i32 x) { return (f32)_mm512_cvtepi32_ps((__m512i)x); }

#else

#if defined(__AVX2__)

AM_INLINE f32 load(const bf16* p) {
  __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (f32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}
AM_INLINE f32 load(const int8_t* p) {
  __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return (f32)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
AM_INLINE f32 max(f32 a, f32 b) { return (f32)_mm256_max_ps((__m256)a, (__m256)b); }
AM_INLINE f32 min(f32 a, f32 b) { return (f32)_mm256_min_ps((__m256)a, (__m256)b); }
AM_INLINE i32 to_nearest(f32 x) { return (i32)_mm256_cvtps_epi32((__m256)x); }
AM_INLINE f32 to_f32(i32 x) { return (f32)_mm256_cvtepi32_ps((__m256i)x); }

#else

AM_INLINE f32 load(const bf16* p) {
  f32 out;
  for (int i = 0; i < W; i++) out[i] = to_float(p[i]);
  return out;
}
AM_INLINE f32 load(const int8_t* p) {
  f32 out;
  for (int i = 0; i < W; i++) out[i] = float(p[i]);
  return out;
}
AM_INLINE f32 max(f32 a, f32 b) { return a > b ? a : b; }
AM_INLINE f32 min(f32 a, f32 b) { return a < b ? a : b; }
AM_INLINE f32 to_f32(i32 x) { return __builtin_convertvector(x, f32); }
AM_INLINE i32 to_nearest(f32 x) {
  // Adding 1.5 * 2^23 rounds to an integer; good for |x| < 2^22.
  f32 magic = broadcast(12582912.0f);
  return __builtin_convertvector((x + magic) - magic, i32);
}

#endif

AM_INLINE void store(bf16* p, f32 x) {
  const u32 bits = (u32)x;
  u32 up = bits + 0x7fff + ((bits >> 16) & 1);
  up = x != x ? bits | 0x400000 : up;
#if defined(__AVX2__)
  const __m256i half = _mm256_srli_epi32((__m256i)up, 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
#else
  for (int i = 0; i < W; i++) p[i] = bf16(up[i] >> 16);
#endif
}
AM_INLINE float sum(f32 x) {
#if defined(__AVX2__)
  __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  float out = 0;
  for (int i = 0; i < W; i++) out += x[i];
  return out;
#endif
}
AM_INLINE float largest(f32 x) {
  float out = x[0];
  for (int i = 1; i < W; i++) out = x[i] > out ? x[i] : out;
  return out;
}

#endif

// e^x, relative error below 2e-7; 0 below -87.3 (denormal results are not made), infinite
// above 88.37.
// Cephes' polynomial on [-ln 2 / 2, ln 2 / 2].
AM_INLINE f32 exp(f32 x) {
  const f32 lowest = broadcast(-87.3f), highest = broadcast(88.37f);
  f32 clipped = min(max(x, lowest), highest);
  i32 n = to_nearest(clipped * 1.44269504088896341f);
  f32 whole = to_f32(n);
  f32 r = clipped - whole * 0.693359375f;
  r = r - whole * -2.12194440e-4f;
  f32 p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  f32 scale = (f32)((n + 127) << 23);
  f32 out = p * scale;
  out = x > highest ? broadcast(__builtin_inff()) : out;
  return x < lowest ? f32{} : out;
}

// tanh(x) = 1 - 2 / (e^2x + 1), and x - x^3 / 3 where that would cancel.
AM_INLINE f32 tanh(f32 x) {
  f32 t = 1.0f - 2.0f / (exp(min(x * 2.0f, broadcast(40.0f))) + 1.0f);
  f32 square = x * x;
  f32 near = x * (1.0f + square * (-0.333333333f + square * (0.133333333f - square * 0.0539682540f)));
  f32 size = max(x, -x);
  return size < 0.1f ? near : t;
}

template <class T>
AM_INLINE void widen(const T* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  for (; i < n; i++) to[i] = to_float(from[i]);
}

template <class T>
AM_INLINE void narrow(const float* from, T* to, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(to + i, load(from + i));
  for (; i < n; i++) from_float(from[i], to + i);
}

AM_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace AM_ISA
