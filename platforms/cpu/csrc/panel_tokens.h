// Activations as integers, to be multiplied with panels, rounded in one of three ways.
//
// Legend: M tokens, C channels.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "panels.h"
#include "parallel.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

// Of a token's group: x = integer * scale.
struct Share {
  float scale;
  int32_t start;  // what the sum of products begins with, for weights that are OFFSET too large
  float sum;      // of x as it was, for weights with a minimum
};

// Where a token's activations begin, and how far it is to the next token's.
struct Place {
  const int8_t* planes;
  const Share* shares;
  int64_t to_planes, to_shares;
};

enum class Rounding {
  TOKEN,  // 8 bits, a scale a token
  GROUP,  // 8 bits, a scale a group of channels; 8 more for groups that stand out of their token
  FINE,   // 16 bits, a scale a group: finer than bfloat16 but for values 2^8 below their largest
};

template <Rounding R>
constexpr int PLANES_OF = R == Rounding::FINE ? 2 : 1;

// A group of a token of which 8 bits are not enough.
struct Outlier {
  int32_t group, token;
  const int8_t* low;
  float scale;  // of the low plane

  bool operator<(const Outlier& other) const {
    return group != other.group ? group < other.group : token < other.token;
  }
};

template <class P, Rounding R>
class Tokens {
 public:
  static constexpr int PLANES = PLANES_OF<R>;

  template <class T>
  Tokens(const T* x, int64_t M, int64_t C)
      : groups_((C + P::CHANNELS - 1) / P::CHANNELS * (P::CHANNELS / P::GROUP)) {
    thread_local Scratch scratch;
    const size_t count = size_t(groups_) * M, plane = (count * P::GROUP + 63) / 64 * 64;
    const size_t planes = R == Rounding::TOKEN ? plane : 2 * plane, shares = sizeof(Share) * count;
    const size_t outliers = R == Rounding::GROUP ? sizeof(Outlier) * count : 0;
    uint8_t* room = static_cast<uint8_t*>(scratch.room(planes + (shares + 63) / 64 * 64 + outliers));
    planes_ = reinterpret_cast<int8_t*>(room);
    low_ = planes_ + plane;
    shares_ = reinterpret_cast<Share*>(room + planes);
    outliers_ = reinterpret_cast<Outlier*>(room + planes + (shares + 63) / 64 * 64);
    auto take_all = [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; m++) take(x + m * C, C, m);
    };
    if (M * C < 1 << 15) take_all(0, M);
    else parallel(M, 4, take_all);
    std::sort(outliers_, outliers_ + num_outliers_);
  }

  // Token m from a span on.  Planes: of each group GROUP bytes of the high one, then the low one's.
  AM_INLINE Place place(int64_t m, int64_t span) const {
    const int64_t group = m * groups_ + span * (P::CHANNELS / P::GROUP);
    return {planes_ + group * PLANES * P::GROUP, shares_ + group, groups_ * PLANES * P::GROUP,
            groups_};
  }

  // Of all tokens, by group.
  const Outlier* begin() const { return outliers_; }
  const Outlier* end() const { return outliers_ + num_outliers_; }

 private:
  // A group whose largest is so many times the token's mean magnitude stands out.
  static constexpr float STANDS_OUT = 16;

  template <class T>
  static AM_INLINE __m512 values(const T* x, int64_t count) {
    if (count >= W) return (__m512)load(x);
    float some[W] = {};
    for (int64_t i = 0; i < count; i++) some[i] = to_float(x[i]);
    return (__m512)load(some);
  }

  // The largest magnitude of n values, whose sum of magnitudes joins `total`; a NaN where one is.
  template <class T>
  static AM_INLINE float top_of(const T* x, int64_t n, f32& total) {
    f32 top = {}, bad = {};
    for (int64_t c = 0; c < n; c += W) {
      const f32 v = (f32)values(x + c, n - c), size = max(v, -v);
      top = max(top, size);
      total += size;
      bad += v - v;
    }
    return largest(top) + bad_lane(bad);
  }

  // 0, or a NaN where a lane is one.
  static AM_INLINE float bad_lane(f32 x) {
    const __m512 v = (__m512)x;
    return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) ? __builtin_nanf("") : 0.0f;
  }

  template <class T>
  AM_INLINE void take(const T* x, int64_t C, int64_t m) {
    Share* shares = shares_ + m * groups_;
    f32 total = {};
    float top = R == Rounding::TOKEN ? top_of(x, C, total) : 0;
    for (int64_t g = 0; g < groups_; g++) {
      const int64_t first = g * P::GROUP, n = C - first < P::GROUP ? C - first : P::GROUP;
      if (R != Rounding::TOKEN) top = n > 0 ? top_of(x + first, n, total) : 0;
      shares[g].scale = top;
    }
    const float stands_out = STANDS_OUT * sum(total) / float(C);
    for (int64_t g = 0; g < groups_; g++) {
      const int64_t first = g * P::GROUP, at = m * groups_ + g;
      const int64_t n = C - first;
      if (R == Rounding::GROUP && shares[g].scale > stands_out) {
        int8_t* low = low_ + at * P::GROUP;
        round<2>(x + first, n, planes_ + at * P::GROUP, low, shares[g]);
        outliers_[num_outliers_++] = {int32_t(g), int32_t(m), low, shares[g].scale};
        shares[g].scale *= 256;
      } else {
        int8_t* to = planes_ + at * PLANES * P::GROUP;
        round<PLANES>(x + first, n, to, to + P::GROUP, shares[g]);
      }
    }
  }

  // n values, or P::GROUP if there are more, in COUNT planes.  share.scale is their largest, and
  // becomes what a step of the lowest plane is worth.
  template <int COUNT, class T>
  static AM_INLINE void round(const T* x, int64_t n, int8_t* high, int8_t* low, Share& share) {
    constexpr float FULL = COUNT == 2 ? 32512 : 127;  // 127 * 256, with room for rounding
    const float top = share.scale;
    const bool none = top < 1e-30f;
    const __m512 by = _mm512_set1_ps(none ? 0 : FULL / top);
    __m512i total = _mm512_setzero_si512(), total_high = total;
    __m512 exact = _mm512_setzero_ps();
    for (int64_t c = 0; c < P::GROUP; c += W) {
      const __m512 v = values(x + c, n - c);
      // Of a token's few steps each counts: a quotient keeps what lies between two of them there.
      const __m512 q = R != Rounding::TOKEN
                           ? _mm512_mul_ps(v, by)
                           : _mm512_div_ps(_mm512_mul_ps(v, _mm512_set1_ps(none ? 0 : FULL)),
                                           _mm512_set1_ps(none ? 1 : top));
      const __m512i whole = _mm512_cvtps_epi32(q);
      auto put = [](__m512i x, int8_t* at) __attribute__((always_inline)) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_cvtepi32_epi8(x));
      };
      if (COUNT == 2) {
        const __m512i upper =
            _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
        put(upper, high + c);
        total_high = _mm512_add_epi32(total_high, upper);
        put(_mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8)), low + c);
      } else {
        put(whole, high + c);
      }
      total = _mm512_add_epi32(total, whole);
      if (P::HAS_MIN) exact = _mm512_add_ps(exact, v);
    }
    const int32_t all = _mm512_reduce_add_epi32(total);
    const bool apart = COUNT > PLANES;  // the low plane is multiplied, and has its start, by itself
    const int32_t begun = apart ? _mm512_reduce_add_epi32(total_high) : all;
    const float scale = none ? 0 : top / FULL;
    share = {scale, -P::OFFSET * begun, P::HAS_MIN ? _mm512_reduce_add_ps(exact) : 0};
  }

  int64_t groups_;
  int8_t *planes_, *low_;
  Share* shares_;
  Outlier* outliers_;
  std::atomic<int64_t> num_outliers_{0};
};

#endif

}  // namespace AM_ISA
