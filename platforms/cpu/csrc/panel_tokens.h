// Activations as integers, to be multiplied with panels: of each group of channels, 16 bits in two
// planes of 8 with a scale of their own.  That is finer than bfloat16 for all but values 2^8 below
// the largest of their group.  Where a model asks for 8 bits a token, there is one plane.
//
// Legend: M tokens, C channels.
#pragma once

#include <cstdlib>

#include "panels.h"
#include "parallel.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

// Of a token's group: x = integer * scale.
struct Share {
  float scale;
  int32_t start;  // what the sum of products begins with, for weights that are OFFSET too large
  float sum;      // of x
};

// Where a token's activations begin, and how far it is to the next token's.
struct Place {
  const int8_t* planes;
  const Share* shares;
  int64_t to_planes, to_shares;
};

// Memory that a thread keeps from call to call.
class Scratch {
 public:
  ~Scratch() { free(at_); }
  void* room(size_t bytes) {
    if (bytes > size_) {
      free(at_);
      size_ = (bytes * 3 / 2 + 4095) / 4096 * 4096;
      at_ = aligned_alloc(64, size_);
    }
    return at_;
  }

 private:
  void* at_ = nullptr;
  size_t size_ = 0;
};

template <class P, int PLANES>
class Tokens {
 public:
  template <class T>
  Tokens(const T* x, int64_t M, int64_t C)
      : groups_((C + P::CHANNELS - 1) / P::CHANNELS * (P::CHANNELS / P::GROUP)) {
    thread_local Scratch scratch;
    const size_t planes = size_t(PLANES) * groups_ * P::GROUP * M;
    uint8_t* room = static_cast<uint8_t*>(scratch.room(planes + 64 + sizeof(Share) * groups_ * M));
    planes_ = reinterpret_cast<int8_t*>(room);
    shares_ = reinterpret_cast<Share*>(room + (planes + 63) / 64 * 64);
    auto take_all = [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; m++) take(x + m * C, C, m);
    };
    if (M * C < 1 << 15) take_all(0, M);
    else parallel(M, 4, take_all);
  }

  // Token m from a span on.  Planes: of each group GROUP bytes of the high one, then the low one's.
  AM_INLINE Place place(int64_t m, int64_t span) const {
    const int64_t group = m * groups_ + span * (P::CHANNELS / P::GROUP);
    return {planes_ + group * PLANES * P::GROUP, shares_ + group, groups_ * PLANES * P::GROUP,
            groups_};
  }

 private:
  template <class T>
  static AM_INLINE __m512 values(const T* x, int64_t count) {
    if (count >= W) return (__m512)load(x);
    float some[W] = {};
    for (int64_t i = 0; i < count; i++) some[i] = to_float(x[i]);
    return (__m512)load(some);
  }

  // The largest magnitude of n values; a NaN where one of them is.
  template <class T>
  static AM_INLINE float top_of(const T* x, int64_t n) {
    f32 top = {}, bad = {};
    for (int64_t c = 0; c < n; c += W) {
      const f32 v = (f32)values(x + c, n - c);
      top = max(top, max(v, -v));
      bad += v - v;
    }
    return largest(top) + sum(bad);
  }

  template <class T>
  AM_INLINE void take(const T* x, int64_t C, int64_t m) {
    constexpr float FULL = PLANES == 2 ? 32512 : 127;  // 127 * 256, with room for rounding
    int8_t* to = planes_ + m * PLANES * groups_ * P::GROUP;
    float top = PLANES == 1 ? top_of(x, C) : 0;
    for (int64_t g = 0; g < groups_; g++, to += PLANES * P::GROUP) {
      const int64_t first = g * P::GROUP, n = C - first < P::GROUP ? C - first : P::GROUP;
      if (PLANES == 2) top = n > 0 ? top_of(x + first, n) : 0;
      const bool none = top < 1e-30f;
      const __m512 by = _mm512_set1_ps(none ? 0 : PLANES == 2 ? FULL / top : FULL);
      int32_t total = 0;
      for (int64_t c = 0; c < P::GROUP; c += W) {
        const __m512 v = values(x + first + c, n - c);
        // Of few steps each counts: a quotient keeps what lies between two of them there.
        const __m512i q = _mm512_cvtps_epi32(
            PLANES == 2 ? _mm512_mul_ps(v, by)
                        : _mm512_div_ps(_mm512_mul_ps(v, by), _mm512_set1_ps(none ? 1 : top)));
        total += _mm512_reduce_add_epi32(q);
        put(q, to + c);
      }
      const float scale = none ? 0 : top / FULL;
      shares_[m * groups_ + g] = {scale, -P::OFFSET * total, scale * float(total)};
    }
  }

  static AM_INLINE void put(__m512i q, int8_t* to) {
    auto bytes = [](int8_t* at) { return reinterpret_cast<__m128i*>(at); };
    if (PLANES == 1) {
      _mm_storeu_si128(bytes(to), _mm512_cvtepi32_epi8(q));
      return;
    }
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i low = _mm512_sub_epi32(q, _mm512_slli_epi32(high, 8));
    _mm_storeu_si128(bytes(to), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(bytes(to + P::GROUP), _mm512_cvtepi32_epi8(low));
  }

  int64_t groups_;
  int8_t* planes_;
  Share* shares_;
};

#endif

}  // namespace AM_ISA
