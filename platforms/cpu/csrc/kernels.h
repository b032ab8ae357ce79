// What each instruction set's build of the kernels offers the library.  The meaning of each is that
// of its op in allmetal.platform.specs; tensors are contiguous, a null pointer is an absent one.
#pragma once

#include <cstdint>

namespace allmetal {

// T: uint16_t holding bfloat16, or float.
template <class T>
struct Typed {
  // y [M, N] = x [M, C] w [N, C]^T + bias [N]
  void (*linear)(T* y, const T* x, const T* w, const T* bias, int64_t M, int64_t N, int64_t C);

  // w [N, C] int8; scale [N], or [N, C / group] where group is not 0
  void (*linear_int8)(T* y, const T* x, const int8_t* w, const float* scale, const T* bias,
                      int64_t M, int64_t N, int64_t C, int64_t group);

  // w [N, bytes]: rows of blocks of GGML's format number `type`
  void (*linear_blocks)(T* y, const T* x, const uint8_t* w, const T* bias, int64_t M, int64_t N,
                        int64_t C, int type);

  // q, out [T, H, D]; cache [blocks, 2, K, block_size, D]; window and soft_cap 0 for none
  void (*attention)(T* out, const T* q, const T* cache, const int32_t* block_table,
                    int64_t table_stride, const int32_t* query_start, const int32_t* seq_lens,
                    const float* sinks, int64_t num_sequences, int64_t H, int64_t K, int64_t D,
                    int64_t block_size, int64_t window, float scale, float soft_cap);

  // qkv [T, (H + 2 K) D]; norm 0 none, 1 a head, 2 all heads
  void (*attention_input)(T* q, const T* qkv, const int64_t* positions, const float* cos_sin,
                          T* cache, const int64_t* slots, const T* q_weight, const T* k_weight,
                          int64_t num_tokens, int64_t H, int64_t K, int64_t D, int64_t block_size,
                          int64_t rotary_dim, int interleaved, int norm, float eps, float offset);

  // s is written only where there is a residual
  void (*rms_norm)(T* y, T* s, const T* x, const T* residual, const T* weight, int64_t num_tokens,
                   int64_t C, float eps, float offset, int cast_before_weight);

  // x [T, 2 dim]; activation 0 silu, 1 gelu, 2 gelu_tanh, 3 relu
  void (*gated_activation)(T* y, const T* x, int64_t num_tokens, int64_t dim, int activation);

  // Experts' weights are pairs of addresses, weight and scale; `shape` is experts.h's ExpertShape;
  // logits are T's, or float where `wide`.
  void (*moe)(T* y, const T* x, const void* logits, const float* correction,
              const int64_t* gate_up, const int64_t* down, const int64_t* shape, float scale,
              int wide, int64_t num_tokens);

  // n elements: y = a + b; y = x * by
  void (*add)(T* y, const T* a, const T* b, int64_t n);
  void (*scale)(T* y, const T* x, float by, int64_t n);
};

struct Kernels {
  const char* isa;
  Typed<uint16_t> bf16;
  Typed<float> f32;

  // logits [rows, V]; out [rows]; options [rows] each, or null
  void (*sampling)(int64_t* out, const float* logits, const float* temperature,
                   const int32_t* top_k, const float* top_p, const float* min_p,
                   const float* uniform, int64_t num_rows, int64_t V);

  // Quantised weights in panels, whose layout is the instruction set's own: bytes of N rows, 0
  // where it has none of the kind; from rows to panels; and the product with `act_bits` of
  // activations, 8 a token or 16.  A kind is GGML's number of a format, or 1000 bits + channels of a group.
  int64_t (*panel_bytes)(int64_t N, int64_t C, int kind);
  void (*pack_panels)(uint8_t* out, const void* w, const float* scale, int64_t N, int64_t C,
                      int kind);
  void (*linear_panels)(uint16_t* y, const uint16_t* x, const uint8_t* w, const float* scale,
                        const uint16_t* bias, int64_t M, int64_t N, int64_t C, int kind,
                        int act_bits);

  // n elements of one type as the other
  void (*widen)(float* y, const uint16_t* x, int64_t n);
  void (*narrow)(uint16_t* y, const float* x, int64_t n);
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
extern const Kernels avx512_bf16_kernels;
#endif

}  // namespace allmetal
