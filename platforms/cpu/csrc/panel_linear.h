// y = x W^T + b over panels: in integers, but for many tokens that are to keep 16 bits in bfloat16.
// GGML's formats take 8 bits of each group of a token, as GGML does.
//
// Legend: M tokens, N outputs, C channels.
#pragma once

#include "linear.h"
#include "panel_bf16.h"
#include "panel_dots.h"
#include "panel_pack.h"

namespace AM_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)

// Tokens up to which integers are faster: what they cost beside the products is per group.
template <class P>
constexpr int64_t FEW_PANELS = P::SCALED ? 64 : 160;

template <class P>
AM_INLINE int64_t panel_bytes_of(int64_t C) {  // of 32 rows
  return (C + P::CHANNELS - 1) / P::CHANNELS * 2 * P::BYTES;
}

template <class P, Rounding R>
AM_INLINE void integer_panels(bf16* y, const bf16* x, const uint8_t* w, const float* scale,
                          const bf16* bias, int64_t M, int64_t N, int64_t C) {
  const Tokens<P, R> tokens(x, M, C);
  const int64_t bytes = panel_bytes_of<P>(C);
  over_panels<PANEL_MR<PLANES_OF<R>>>(M, N, C * PLANES_OF<R>, [&](int64_t panel, int64_t m, int64_t size) {
    panel_product<P, R>(w + panel * bytes, bytes / (2 * P::BYTES), tokens, m, size,
                        [&](int64_t token, int64_t count, const float* sums) {
      finish_block(sums, count, panel, N, scale, bias, y + (m + token) * N);
    });
  });
}

template <class P>
AM_INLINE void many_panels(bf16* y, const bf16* x, const uint8_t* w, const float* scale,
                           const bf16* bias, int64_t M, int64_t N, int64_t C) {
  static_assert(SLICE % P::CHANNELS == 0, "slices hold whole spans");
  const int64_t bytes = panel_bytes_of<P>(C);
  linear_over<bf16>(y, x, scale, bias, M, N, C, [=](const bf16* x, int64_t M, int64_t begin,
                                                    int64_t count, float* sums) {
    const uint8_t* first = w + begin / PANEL_ROWS * bytes;
    auto fill = [=](int64_t c, int64_t size, bf16* packed) {
      const uint8_t* at = first + c / P::CHANNELS * 2 * P::BYTES;
      for (int64_t n = 0; n < count; n += PANEL_ROWS, at += bytes)
        expand_panel<P>(at, size, packed + 2 * n);
    };
    gemm(x, C, M, count, C, fill, [](int64_t) { return Soon{}; }, sums, MAX_CHUNK);
  }, MAX_CHUNK);
}

template <class P>
void linear_panels_of(bf16* y, const bf16* x, const uint8_t* w, const float* scale,
                      const bf16* bias, int64_t M, int64_t N, int64_t C, int act_bits) {
  if constexpr (P::ACT8) {
    if (act_bits == 8) return integer_panels<P, Rounding::TOKEN>(y, x, w, scale, bias, M, N, C);
    if (M > FEW_PANELS<P> && N >= MAX_CHUNK && C % Pack<bf16>::K == 0)
      return many_panels<P>(y, x, w, scale, bias, M, N, C);
    integer_panels<P, Rounding::FINE>(y, x, w, scale, bias, M, N, C);
  } else {
    integer_panels<P, Rounding::GROUP>(y, x, w, scale, bias, M, N, C);
  }
}

// The panels' own of each kind: `f` is called with a null pointer to the type.
template <class F>
AM_INLINE bool of_kind(int kind, const F& f) {
  switch (kind) {
    case 2: return f((Panel<Q4_0>*)0), true;
    case 3: return f((Panel<Q4_1>*)0), true;
    case 6: return f((Panel<Q5_0>*)0), true;
    case 7: return f((Panel<Q5_1>*)0), true;
    case 8: return f((Panel<Q8_0>*)0), true;
    case 12: return f((Panel<Q4_K>*)0), true;
    case 13: return f((Panel<Q5_K>*)0), true;
    case 14: return f((Panel<Q6_K>*)0), true;
    case int_kind(8, 0): return f((Int8Panel<0>*)0), true;
    case int_kind(8, 32): return f((Int8Panel<32>*)0), true;
    case int_kind(8, 64): return f((Int8Panel<64>*)0), true;
    case int_kind(8, 128): return f((Int8Panel<128>*)0), true;
    case int_kind(4, 0): return f((Int4Panel<0>*)0), true;
    case int_kind(4, 32): return f((Int4Panel<32>*)0), true;
    case int_kind(4, 64): return f((Int4Panel<64>*)0), true;
    case int_kind(4, 128): return f((Int4Panel<128>*)0), true;
    default: return false;
  }
}

template <class F>
AM_INLINE void put_panels(Panel<F>*, uint8_t* out, const void* w, const float*, int64_t N,
                          int64_t C) {
  pack_blocks<F>(out, static_cast<const uint8_t*>(w), N, C);
}
template <int G>
AM_INLINE void put_panels(Int8Panel<G>*, uint8_t* out, const void* w, const float* scale, int64_t N,
                          int64_t C) {
  pack_ints<Int8Panel<G>, 8>(out, static_cast<const int8_t*>(w), scale, N, C);
}
template <int G>
AM_INLINE void put_panels(Int4Panel<G>*, uint8_t* out, const void* w, const float* scale, int64_t N,
                          int64_t C) {
  pack_ints<Int4Panel<G>, 4>(out, static_cast<const int8_t*>(w), scale, N, C);
}

#endif

// Bytes that N rows take in panels, 0 where there are none of the kind.
inline int64_t panel_bytes(int64_t N, int64_t C, int kind) {
  int64_t bytes = 0;
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
  if (kind == BF16_KIND) bytes = C % 2 ? 0 : C * 2 * PANEL_ROWS;
  of_kind(kind, [&](auto* p) {
    bytes = panel_bytes_of<std::remove_pointer_t<decltype(p)>>(C);
  });
#endif
  (void)C, (void)kind;
  return bytes * ((N + PANEL_ROWS - 1) / PANEL_ROWS);
}

// w as in `linear_int8` or `linear_blocks`; out is aligned to 64 bytes.
inline void pack_panels(uint8_t* out, const void* w, const float* scale, int64_t N, int64_t C,
                        int kind) {
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
  if (kind == BF16_KIND) return pack_bf16(out, static_cast<const bf16*>(w), N, C);
  of_kind(kind, [&](auto* p) { put_panels(p, out, w, scale, N, C); });
#else
  (void)out, (void)w, (void)scale, (void)N, (void)C, (void)kind;
  __builtin_trap();
#endif
}

// scale [N] of whole rows, else null: the panels hold theirs.
inline void linear_panels(bf16* y, const bf16* x, const uint8_t* w, const float* scale,
                          const bf16* bias, int64_t M, int64_t N, int64_t C, int kind,
                          int act_bits) {
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
  if (kind == BF16_KIND) return linear_bf16_panels(y, x, w, bias, M, N, C);
  of_kind(kind, [&](auto* p) {
    linear_panels_of<std::remove_pointer_t<decltype(p)>>(y, x, w, scale, bias, M, N, C, act_bits);
  });
#else
  (void)y, (void)x, (void)w, (void)scale, (void)bias, (void)M, (void)N, (void)C, (void)kind;
  (void)act_bits;
  __builtin_trap();
#endif
}

}  // namespace AM_ISA
