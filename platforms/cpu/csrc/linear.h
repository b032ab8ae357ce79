// y = x W^T + b.  Rows of W are used where they lie, or decoded some at a time into a buffer that
// stays in the nearest cache.
//
// Legend: M tokens, N outputs, C channels.
#pragma once

#include "blocks.h"
#include "gemm.h"
#include "parallel.h"

namespace AM_ISA {

constexpr int64_t MAX_CHUNK = MAX_N;  // outputs a thread takes at a time
constexpr int64_t PANEL = 512;        // tokens whose activations stay in the second cache
constexpr int64_t FEW = 36;           // tokens up to which weights are read at memory's speed
constexpr int64_t DEPTH = 1024;       // channels whose rows stay in the first cache, a tile's

// Sums to outputs: times the output's scale, plus its bias, rounded.
template <class T>
AM_INLINE void finish(const float* sums, int64_t n, const float* scale, const T* bias, T* y) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    f32 v = load(sums + i);
    if (scale) v *= load(scale + i);
    if (bias) v += load(bias + i);
    store(y + i, v);
  }
  for (; i < n; i++) {
    float v = sums[i] * (scale ? scale[i] : 1.0f) + (bias ? to_float(bias[i]) : 0.0f);
    from_float(v, y + i);
  }
}

AM_INLINE int64_t chunk_of(int64_t N, int64_t M) {
  const int64_t fair = N / (int64_t(allmetal::num_threads) * 4) / 8 * 8;
  return M > FEW || fair > MAX_CHUNK ? MAX_CHUNK : fair < 8 ? 8 : fair;
}

// multiply(x, M, n, N, sums) puts x[M] . w[n .. n + N) into sums [M][MAX_CHUNK]; n is a multiple of
// `chunk`, if that is given.
template <class T, class Multiply>
AM_INLINE void linear_over(T* y, const T* x, const float* scale, const T* bias, int64_t M,
                           int64_t N, int64_t C, const Multiply& multiply, int64_t chunk = 0) {
  for (int64_t m = 0; m < M; m += PANEL) {
    const int64_t size = M - m < PANEL ? M - m : PANEL;
    parallel(N, chunk ? chunk : chunk_of(N, size), [&](int64_t begin, int64_t end) {
      alignas(64) float sums[PANEL * MAX_CHUNK];
      multiply(x + m * C, size, begin, end - begin, sums);
      for (int64_t i = 0; i < size; i++) {
        finish<T>(sums + i * MAX_CHUNK, end - begin, scale ? scale + begin : nullptr,
                  bias ? bias + begin : nullptr, y + (m + i) * N + begin);
      }
    });
  }
}

template <class T>
void linear(T* y, const T* x, const T* w, const T* bias, int64_t M, int64_t N, int64_t C) {
  linear_over<T>(y, x, nullptr, bias, M, N, C, [=](const T* x, int64_t M, int64_t begin,
                                                   int64_t count, float* sums) {
    const T* part = w + begin * C;
    if (M > FEW && C % Pack<T>::K == 0) {
      auto rows = [=](int64_t c, int64_t, int64_t& ld) { return ld = C, part + c; };
      auto soon = [=](int64_t c) {
        const T* at = c < C ? part + c : part + count * C;
        return Soon{reinterpret_cast<const char*>(at), C * int64_t(sizeof(T)), count};
      };
      gemm(x, C, M, count, C, packing<T>(count, rows), soon, sums, MAX_CHUNK);
      return;
    }
    const int64_t depth = M <= MAX_MR ? C : DEPTH;
    for (int64_t c = 0; c < C; c += depth) {
      dots(x + c, C, M, part + c, C, count, C - c < depth ? C - c : depth, (M <= 3 ? 8 : 4) * C,
           c > 0, sums, MAX_CHUNK);
    }
  });
}

// decode(n, c, size, out): channels c .. c + size - 1 of row n; c and size are multiples of SLICE
// but for the last.
template <class T, class Decode>
AM_INLINE void linear_decoded(T* y, const T* x, const float* scale, const T* bias, int64_t M,
                              int64_t N, int64_t C, const Decode& decode) {
  linear_over<T>(y, x, scale, bias, M, N, C, [=](const T* x, int64_t M, int64_t begin,
                                                 int64_t count, float* sums) {
    alignas(64) T some[MAX_CHUNK * SLICE];
    if (M > FEW && C % Pack<T>::K == 0) {
      auto rows = [&](int64_t c, int64_t size, int64_t& ld) -> const T* {
        for (int64_t n = 0; n < count; n++) decode(begin + n, c, size, some + n * SLICE);
        return ld = SLICE, some;
      };
      gemm(x, C, M, count, C, packing<T>(count, rows), [](int64_t) { return Soon{}; }, sums,
           MAX_CHUNK);
      return;
    }
    constexpr int64_t ROWS = 8;
    for (int64_t n = 0; n < count; n += ROWS) {
      const int64_t rows = count - n < ROWS ? count - n : ROWS;
      for (int64_t c = 0; c < C; c += DEPTH) {
        const int64_t size = C - c < DEPTH ? C - c : DEPTH;
        for (int64_t i = 0; i < rows; i++) decode(begin + n + i, c, size, some + i * DEPTH);
        dots(x + c, C, M, some, DEPTH, rows, size, 0, c > 0, sums + n, MAX_CHUNK);
      }
    }
  });
}

// w [N, C] int8; scale [N], or [N, C / group] with `group`.
template <class T>
void linear_int8(T* y, const T* x, const int8_t* w, const float* scale, const T* bias, int64_t M,
                 int64_t N, int64_t C, int64_t group) {
  if (!group) {  // whole numbers are exact, and the sum is scaled
    linear_decoded<T>(y, x, scale, bias, M, N, C, [=](int64_t n, int64_t c, int64_t size, T* out) {
      const int8_t* from = w + n * C + c;
      int64_t i = 0;
      for (; i + W <= size; i += W) {
        prefetch(from + i + 4096);
        store(out + i, load(from + i));
      }
      for (; i < size; i++) from_float(float(from[i]), out + i);
    });
    return;
  }
  linear_decoded<T>(y, x, nullptr, bias, M, N, C, [=](int64_t n, int64_t c, int64_t size, T* out) {
    const int8_t* from = w + n * C;
    const float* scales = scale + n * (C / group);
    for (int64_t at = c; at < c + size;) {
      const int64_t border = (at / group + 1) * group, end = border < c + size ? border : c + size;
      const float by = scales[at / group];
      for (; at + W <= end; at += W) store(out + at - c, load(from + at) * by);
      for (; at < end; at++) from_float(float(from[at]) * by, out + at - c);
    }
  });
}

template <class T, class F>
AM_INLINE void linear_blocks_of(T* y, const T* x, const uint8_t* w, const T* bias, int64_t M,
                                int64_t N, int64_t C) {
  static_assert(SLICE % F::ELEMENTS == 0 && DEPTH % SLICE == 0, "slices hold whole blocks");
  const int64_t row = C / F::ELEMENTS * F::BYTES;
  linear_decoded<T>(y, x, nullptr, bias, M, N, C, [=](int64_t n, int64_t c, int64_t size, T* out) {
    decode_blocks<F>(w + n * row + c / F::ELEMENTS * F::BYTES, size, out);
  });
}

// w [N, bytes]: rows of blocks of `type`, GGML's number of the format.
template <class T>
void linear_blocks(T* y, const T* x, const uint8_t* w, const T* bias, int64_t M, int64_t N,
                   int64_t C, int type) {
  switch (type) {
    case 2: return linear_blocks_of<T, Q4_0>(y, x, w, bias, M, N, C);
    case 3: return linear_blocks_of<T, Q4_1>(y, x, w, bias, M, N, C);
    case 6: return linear_blocks_of<T, Q5_0>(y, x, w, bias, M, N, C);
    case 7: return linear_blocks_of<T, Q5_1>(y, x, w, bias, M, N, C);
    case 8: return linear_blocks_of<T, Q8_0>(y, x, w, bias, M, N, C);
    case 10: return linear_blocks_of<T, Q2_K>(y, x, w, bias, M, N, C);
    case 11: return linear_blocks_of<T, Q3_K>(y, x, w, bias, M, N, C);
    case 12: return linear_blocks_of<T, Q4_K>(y, x, w, bias, M, N, C);
    case 13: return linear_blocks_of<T, Q5_K>(y, x, w, bias, M, N, C);
    case 14: return linear_blocks_of<T, Q6_K>(y, x, w, bias, M, N, C);
    default: __builtin_trap();
  }
}

}  // namespace AM_ISA
