// Routed experts: the routing, each expert's products over the tokens that were sent to it, and the
// sum of what comes back.  Experts without tokens are not read.
//
// Legend: T tokens, k experts a token, E experts, C channels, I channels inside an expert.
#pragma once

#include "elementwise.h"
#include "linear.h"
#include "panel_linear.h"

namespace AM_ISA {

// As numbers side by side, the way the interpreter hands them over.
struct ExpertShape {
  int64_t E, C, I, activation;
  int64_t top_k, sigmoid, renormalize, num_groups, top_groups;
  // Of gate and up, then of down: 0 dense rows, 1 int8 rows, 2 rows of blocks, 3 panels; what kind of
  // these, the channels of a scale with int8; and the bits of activations.
  int64_t form[2], kind[2], bits[2];
};

struct Stored {  // an expert's weight
  const void* weight;
  const float* scale;
};

template <class T>
AM_INLINE void expert_product(T* y, const T* x, const Stored& w, int64_t M, int64_t N, int64_t C,
                              const ExpertShape& s, int which) {
  const int kind = int(s.kind[which]);
  switch (s.form[which]) {
    case 0: return linear<T>(y, x, static_cast<const T*>(w.weight), nullptr, M, N, C);
    case 1:
      return linear_int8<T>(y, x, static_cast<const int8_t*>(w.weight), w.scale, nullptr, M, N, C,
                            kind);
    case 2:
      return linear_blocks<T>(y, x, static_cast<const uint8_t*>(w.weight), nullptr, M, N, C, kind);
    default:
      if constexpr (std::is_same_v<T, bf16>)
        linear_panels(y, x, static_cast<const uint8_t*>(w.weight), w.scale, nullptr, M, N, C, kind,
                      int(s.bits[which]));
  }
}

// ---- routing

// The place of the largest of n values that are not taken yet, which is then.
AM_INLINE int64_t take_largest(const float* x, int64_t n, bool* taken) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; i++) {
    if (!taken[i] && (best < 0 || x[i] > x[best])) best = i;
  }
  taken[best] = true;
  return best;
}

constexpr int64_t MAX_EXPERTS = 1024;

// Groups that are not among the best, a group being worth its two highest, are taken.
AM_INLINE void refuse_groups(const float* by, const ExpertShape& s, bool* taken) {
  const int64_t size = s.E / s.num_groups;
  float worth[MAX_EXPERTS];
  bool kept[MAX_EXPERTS] = {}, seen[MAX_EXPERTS];
  for (int64_t g = 0; g < s.num_groups; g++) {
    memset(seen, 0, size_t(size));
    const float* of = by + g * size;
    worth[g] = of[take_largest(of, size, seen)];
    worth[g] += of[take_largest(of, size, seen)];
  }
  for (int64_t i = 0; i < s.top_groups; i++) take_largest(worth, s.num_groups, kept);
  for (int64_t g = 0; g < s.num_groups; g++) memset(taken + g * size, !kept[g], size_t(size));
}

template <class L>
AM_INLINE void route(const L* logits, const float* correction, const ExpertShape& s, float scale,
                     int32_t* ids, float* shares) {
  float scores[MAX_EXPERTS], by[MAX_EXPERTS], total = 0, top = to_float(logits[0]);
  for (int64_t e = 0; e < s.E; e++) {
    scores[e] = to_float(logits[e]);
    top = scores[e] > top ? scores[e] : top;
  }
  for (int64_t e = 0; e < s.E; e++) {
    scores[e] = s.sigmoid ? 1 / (1 + __builtin_expf(-scores[e])) : __builtin_expf(scores[e] - top);
    total += scores[e];
  }
  for (int64_t e = 0; e < s.E; e++) {
    if (!s.sigmoid) scores[e] /= total;
    by[e] = scores[e] + (correction ? correction[e] : 0);
  }
  bool taken[MAX_EXPERTS] = {};
  if (s.num_groups > 1) refuse_groups(by, s, taken);
  float sum = 0;
  for (int64_t i = 0; i < s.top_k; i++) {
    ids[i] = int32_t(take_largest(by, s.E, taken));
    shares[i] = scores[ids[i]];
    sum += shares[i];
  }
  for (int64_t i = 0; i < s.top_k; i++)
    shares[i] = (s.renormalize ? shares[i] / (sum + 1e-20f) : shares[i]) * scale;
}

// ---- experts

// `rows` of x through one expert, side by side in out.
template <class T>
AM_INLINE void one_expert(T* out, const T* x, const int32_t* rows, int64_t n,
                          const Stored& gate_up, const Stored& down, const ExpertShape& s) {
  thread_local Scratch scratch;
  const size_t each = size_t(s.C + 3 * s.I + 96) * sizeof(T);
  T* from = static_cast<T*>(scratch.room(each * n + 192));
  auto next = [](T* p, int64_t size) {  // aligned
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p + size) + 63) / 64 * 64);
  };
  T *both = next(from, n * s.C), *gated = next(both, n * 2 * s.I);
  for (int64_t i = 0; i < n; i++) memcpy(from + i * s.C, x + rows[i] * s.C, sizeof(T) * s.C);
  expert_product<T>(both, from, gate_up, n, 2 * s.I, s.C, s, 0);
  gated_activation<T>(gated, both, n, s.I, int(s.activation));
  expert_product<T>(out, gated, down, n, s.C, s.I, s, 1);
}

// y [T, C]; logits [T, E] in T, or float if `wide`; an expert's weights are two addresses, E of
// them in gate_up and in down; `shape` is an ExpertShape.
template <class T>
void moe(T* y, const T* x, const void* logits, const float* correction, const int64_t* gate_up,
         const int64_t* down, const int64_t* shape, float scale, int wide, int64_t num_tokens) {
  ExpertShape s;
  static_assert(sizeof s % sizeof(int64_t) == 0, "numbers side by side");
  memcpy(&s, shape, sizeof s);
  const int64_t k = s.top_k, slots = num_tokens * k;
  if (!slots) return;
  thread_local Scratch kept, results;
  // Of slots: experts, shares, tokens by expert, places by slot; and where each expert's begin.
  int32_t* ids = static_cast<int32_t*>(kept.room(size_t(slots) * 16 + size_t(s.E + 1) * 8));
  float* shares = reinterpret_cast<float*>(ids + slots);
  int32_t *rows = ids + 2 * slots, *places = ids + 3 * slots, *start = ids + 4 * slots;
  T* out = static_cast<T*>(results.room(sizeof(T) * slots * s.C));
  parallel(num_tokens, 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      if (wide) route(static_cast<const float*>(logits) + t * s.E, correction, s, scale,
                      ids + t * k, shares + t * k);
      else route(static_cast<const T*>(logits) + t * s.E, correction, s, scale, ids + t * k,
                 shares + t * k);
    }
  });
  int32_t* used = start + s.E + 1;
  memset(start, 0, sizeof(int32_t) * (s.E + 1));
  for (int64_t i = 0; i < slots; i++) start[ids[i] + 1]++;
  int64_t num_used = 0;
  for (int64_t e = 0; e < s.E; e++) {
    if (start[e + 1]) used[num_used++] = int32_t(e);
    start[e + 1] += start[e];
  }
  for (int64_t i = 0; i < slots; i++) {
    const int32_t place = start[ids[i]]++;
    rows[place] = int32_t(i / k), places[i] = place;
  }
  auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int32_t e = used[i], first = e ? start[e - 1] : 0;  // begins have moved to ends
      const Stored a = {reinterpret_cast<const void*>(gate_up[2 * e]),
                        reinterpret_cast<const float*>(gate_up[2 * e + 1])};
      const Stored b = {reinterpret_cast<const void*>(down[2 * e]),
                        reinterpret_cast<const float*>(down[2 * e + 1])};
      one_expert<T>(out + first * s.C, x, rows + first, start[e] - first, a, b, s);
    }
  };
  // With many experts each thread takes its own; else all share each product.
  if (num_used >= 4 * allmetal::num_threads) {
    parallel(num_used, 1, [&](int64_t begin, int64_t end) {
      const Alone alone;
      run(begin, end);
    });
  } else {
    run(0, num_used);
  }
  parallel(num_tokens, rows_a_chunk(s.C * k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      for (int64_t c = 0; c < s.C; c += W) {
        f32 sum = {};
        const int64_t n = s.C - c < W ? s.C - c : W;
        for (int64_t i = 0; i < k; i++) {
          const T* from = out + places[t * k + i] * s.C + c;
          const float share = shares[t * k + i];
          if (n == W) sum += load(from) * share;
          else for (int64_t j = 0; j < n; j++) sum[j] += to_float(from[j]) * share;
        }
        T* to = y + t * s.C + c;
        if (n == W) store(to, sum);
        else for (int64_t j = 0; j < n; j++) from_float(sum[j], to + j);
      }
    }
  });
}

}  // namespace AM_ISA
