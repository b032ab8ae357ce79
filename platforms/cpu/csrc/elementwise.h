// RMS norm, gated activations, and the way from a QKV projection to attention's input.
//
// Legend: T tokens, C channels, H query heads, K key-value heads, D head dim.
#pragma once

#include "parallel.h"

namespace AM_ISA {

constexpr int64_t WORTH_A_THREAD = 1 << 14;  // elements

AM_INLINE int64_t rows_a_chunk(int64_t elements_a_row) {
  const int64_t rows = WORTH_A_THREAD / (elements_a_row ? elements_a_row : 1);
  return rows < 1 ? 1 : rows;
}

// ---- norms

AM_INLINE float sum_of_squares(const float* x, int64_t n) {
  f32 total[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    for (int k = 0; k < 4; k++) total[k] += load(x + i + k * W) * load(x + i + k * W);
  }
  for (; i + W <= n; i += W) total[0] += load(x + i) * load(x + i);
  float out = sum((total[0] + total[1]) + (total[2] + total[3]));
  for (; i < n; i++) out += x[i] * x[i];
  return out;
}

AM_INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

// y = round(x * by) * (weight + offset), the inner rounding only with `cast`.
template <class T>
AM_INLINE void apply_weight(const float* x, float by, const T* weight, float offset, bool cast,
                            int64_t n, T* y) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    f32 v = load(x + i) * by;
    if (cast) {
      store(y + i, v);
      v = load(y + i);
    }
    store(y + i, v * (load(weight + i) + offset));
  }
  for (; i < n; i++) {
    float v = x[i] * by;
    if (cast) {
      from_float(v, y + i);
      v = to_float(y[i]);
    }
    from_float(v * (to_float(weight[i]) + offset), y + i);
  }
}

constexpr int64_t MAX_C = 1 << 15;

// s = x + residual, rounded, unless residual is null; y is its norm.
template <class T>
void rms_norm(T* y, T* s, const T* x, const T* residual, const T* weight, int64_t num_tokens,
              int64_t C, float eps, float offset, int cast) {
  parallel(num_tokens, rows_a_chunk(C), [&](int64_t begin, int64_t end) {
    alignas(64) float wide[MAX_C];
    for (int64_t t = begin; t < end; t++) {
      const T* row = x + t * C;
      int64_t i = 0;
      if (residual) {
        const T* other = residual + t * C;
        T* sum = s + t * C;
        for (; i + W <= C; i += W) {
          store(sum + i, load(row + i) + load(other + i));
          store(wide + i, load(sum + i));
        }
        for (; i < C; i++) {
          from_float(to_float(row[i]) + to_float(other[i]), sum + i);
          wide[i] = to_float(sum[i]);
        }
      } else {
        for (; i + W <= C; i += W) store(wide + i, load(row + i));
        for (; i < C; i++) wide[i] = to_float(row[i]);
      }
      const float by = inverse_root(sum_of_squares(wide, C) / float(C) + eps);
      apply_weight(wide, by, weight, offset, cast != 0, C, y + t * C);
    }
  });
}

// ---- gated activations

enum Activation { SILU, GELU, GELU_TANH, RELU };

// erf by Abramowitz and Stegun 7.1.26, off by at most 1.5e-7.
AM_INLINE f32 erf(f32 x) {
  f32 size = max(x, -x);
  f32 t = 1.0f / (1.0f + 0.3275911f * size);
  f32 p = t * (0.254829592f +
               t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  f32 y = 1.0f - p * exp(-size * size);
  return x < 0.0f ? -y : y;
}

template <int A>
AM_INLINE f32 activate(f32 x) {
  if constexpr (A == SILU) return x / (1.0f + exp(-x));
  if constexpr (A == GELU) return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f));
  if constexpr (A == GELU_TANH)
    return 0.5f * x * (1.0f + tanh(x * (0.79788456080286536f + 0.035677408136300125f * x * x)));
  return max(x, f32{});
}

template <class T, int A>
AM_INLINE void gate_row(const T* gate, const T* up, T* y, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, activate<A>(load(gate + i)) * load(up + i));
  for (; i < n; i++) from_float(activate<A>(broadcast(to_float(gate[i])))[0] * to_float(up[i]), y + i);
}

template <class T>
void gated_activation(T* y, const T* x, int64_t num_tokens, int64_t dim, int activation) {
  parallel(num_tokens, rows_a_chunk(dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      const T *gate = x + t * 2 * dim, *up = gate + dim;
      switch (activation) {
        case SILU: gate_row<T, SILU>(gate, up, y + t * dim, dim); break;
        case GELU: gate_row<T, GELU>(gate, up, y + t * dim, dim); break;
        case GELU_TANH: gate_row<T, GELU_TANH>(gate, up, y + t * dim, dim); break;
        default: gate_row<T, RELU>(gate, up, y + t * dim, dim);
      }
    }
  });
}

// ---- attention's input

struct InputShape {
  int64_t H, K, D, block_size, rotary_dim;
  int interleaved, norm;  // norm: 0 none, 1 a head, 2 all heads
  float eps, offset;
};

constexpr int64_t MAX_HEAD = 1024;

// x = x * by * (weight + offset)
template <class T>
AM_INLINE void weigh_head(float* x, float by, const T* weight, float offset, int64_t D) {
  int64_t i = 0;
  for (; i + W <= D; i += W) store(x + i, load(x + i) * by * (load(weight + i) + offset));
  for (; i < D; i++) x[i] = x[i] * by * (to_float(weight[i]) + offset);
}

AM_INLINE void rotate(float* x, const float* cos, const float* sin, int64_t half, bool interleaved) {
  if (interleaved) {
    for (int64_t i = 0; i < half; i++) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    f32 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

// 1 / root mean square over all heads of a token, for the norm of that kind.
template <class T>
AM_INLINE float over_all(const T* x, int64_t heads, const InputShape& s) {
  float wide[MAX_HEAD], total = 0;
  for (int64_t h = 0; h < heads; h++) {
    widen(x + h * s.D, wide, s.D);
    total += sum_of_squares(wide, s.D);
  }
  return inverse_root(total / float(heads * s.D) + s.eps);
}

// One head: from [D] to [D], normalised and rotated.
template <class T>
AM_INLINE void prepare(const T* from, T* to, const T* weight, float by, const float* cos_sin,
                       const InputShape& s) {
  alignas(64) float wide[MAX_HEAD];
  widen(from, wide, s.D);
  if (s.norm == 1) by = inverse_root(sum_of_squares(wide, s.D) / float(s.D) + s.eps);
  if (s.norm) weigh_head(wide, by, weight, s.offset, s.D);
  const int64_t half = s.rotary_dim / 2;
  if (half) rotate(wide, cos_sin, cos_sin + half, half, s.interleaved);
  narrow(wide, to, s.D);
}

template <class T>
void attention_input(T* q, const T* qkv, const int64_t* positions, const float* cos_sin, T* cache,
                     const int64_t* slots, const T* q_weight, const T* k_weight,
                     int64_t num_tokens, int64_t H, int64_t K, int64_t D, int64_t block_size,
                     int64_t rotary_dim, int interleaved, int norm, float eps, float offset) {
  const InputShape s = {H, K, D, block_size, rotary_dim, interleaved, norm, eps, offset};
  const int64_t heads = H + 2 * K, page = K * block_size * D;
  parallel(num_tokens, rows_a_chunk(heads * D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      const T *from_q = qkv + t * heads * D, *from_k = from_q + H * D, *from_v = from_k + K * D;
      const float* angles = rotary_dim ? cos_sin + positions[t] * rotary_dim : nullptr;
      const float by_q = norm == 2 ? over_all(from_q, H, s) : 1;
      const float by_k = norm == 2 ? over_all(from_k, K, s) : 1;
      const int64_t apart = norm == 2 ? D : 0;  // between the heads' weights
      for (int64_t h = 0; h < H; h++)
        prepare(from_q + h * D, q + (t * H + h) * D, q_weight + h * apart, by_q, angles, s);
      T* keys = cache + slots[t] / block_size * 2 * page + slots[t] % block_size * D;
      for (int64_t h = 0; h < K; h++) {
        T* at = keys + h * block_size * D;
        prepare(from_k + h * D, at, k_weight + h * apart, by_k, angles, s);
        memcpy(at + page, from_v + h * D, sizeof(T) * D);
      }
    }
  });
}

}  // namespace AM_ISA
