// The library's C interface: raw pointers and sizes, no type of Python's or torch's.
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "pool.h"
#include "program.h"
#include "rows.h"
#include "state.h"

#define AM_EXPORT extern "C" __attribute__((visibility("default")))

namespace allmetal {

namespace {

// The best build this CPU runs.  `limit`, if not null, is the name of the best to consider.
const Kernels* choose(const char* limit) {
#if defined(__x86_64__)
  bool considered = limit == nullptr;
  auto ok = [&](const Kernels& kernels) {
    considered = considered || std::strcmp(limit, kernels.isa) == 0;
    return considered;
  };
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (ok(avx512_bf16_kernels) && avx512 && __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vnni"))
    return &avx512_bf16_kernels;
  if (ok(avx512_kernels) && avx512) return &avx512_kernels;
  // What has AVX2 has half-precision conversions; not every compiler can ask.
  if (ok(avx2_kernels) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return &avx2_kernels;
#endif
  (void)limit;
  return &portable_kernels;
}

const Kernels* chosen = choose(nullptr);

}  // namespace
}  // namespace allmetal

using allmetal::chosen;

AM_EXPORT int am_version() { return 4; }
AM_EXPORT const char* am_isa() { return chosen->isa; }
AM_EXPORT void am_set_threads(int threads) { allmetal::num_threads = threads < 1 ? 1 : threads; }

// For tests: run what an older CPU would.
AM_EXPORT void am_limit_isa(const char* name) { chosen = allmetal::choose(name); }

#define AM_API(NAME, T)                                                                          \
  AM_EXPORT void am_linear_##NAME(T* y, const T* x, const T* w, const T* bias, int64_t M,        \
                                  int64_t N, int64_t C) {                                        \
    chosen->NAME.linear(y, x, w, bias, M, N, C);                                                 \
  }                                                                                              \
  AM_EXPORT void am_linear_int8_##NAME(T* y, const T* x, const int8_t* w, const float* scale,    \
                                       const T* bias, int64_t M, int64_t N, int64_t C,           \
                                       int64_t group) {                                          \
    chosen->NAME.linear_int8(y, x, w, scale, bias, M, N, C, group);                              \
  }                                                                                              \
  AM_EXPORT void am_linear_blocks_##NAME(T* y, const T* x, const uint8_t* w, const T* bias,      \
                                         int64_t M, int64_t N, int64_t C, int type) {            \
    chosen->NAME.linear_blocks(y, x, w, bias, M, N, C, type);                                    \
  }                                                                                              \
  AM_EXPORT void am_attention_##NAME(                                                            \
      T* out, const T* q, const T* cache, const int32_t* block_table, int64_t table_stride,      \
      const int32_t* query_start, const int32_t* seq_lens, const float* sinks,                   \
      int64_t num_sequences, int64_t H, int64_t K, int64_t D, int64_t block_size,                \
      int64_t window, float scale, float soft_cap) {                                             \
    chosen->NAME.attention(out, q, cache, block_table, table_stride, query_start, seq_lens,      \
                           sinks, num_sequences, H, K, D, block_size, window, scale, soft_cap);  \
  }                                                                                              \
  AM_EXPORT void am_attention_input_##NAME(                                                      \
      T* q, const T* qkv, const int64_t* positions, const float* cos_sin, T* cache,              \
      const int64_t* slots, const T* q_weight, const T* k_weight, int64_t num_tokens, int64_t H, \
      int64_t K, int64_t D, int64_t block_size, int64_t rotary_dim, int interleaved, int norm,   \
      float eps, float offset) {                                                                 \
    chosen->NAME.attention_input(q, qkv, positions, cos_sin, cache, slots, q_weight, k_weight,   \
                                 num_tokens, H, K, D, block_size, rotary_dim, interleaved, norm, \
                                 eps, offset);                                                   \
  }                                                                                              \
  AM_EXPORT void am_rms_norm_##NAME(T* y, T* s, const T* x, const T* residual, const T* weight,  \
                                    int64_t num_tokens, int64_t C, float eps, float offset,      \
                                    int cast_before_weight) {                                    \
    chosen->NAME.rms_norm(y, s, x, residual, weight, num_tokens, C, eps, offset,                 \
                          cast_before_weight);                                                   \
  }                                                                                              \
  AM_EXPORT void am_gated_activation_##NAME(T* y, const T* x, int64_t num_tokens, int64_t dim,   \
                                            int activation) {                                    \
    chosen->NAME.gated_activation(y, x, num_tokens, dim, activation);                            \
  }                                                                                              \
  AM_EXPORT void am_moe_##NAME(T* y, const T* x, const void* logits, const float* correction,    \
                               const int64_t* gate_up, const int64_t* down,                      \
                               const int64_t* shape, float scale, int wide,                      \
                               int64_t num_tokens) {                                             \
    chosen->NAME.moe(y, x, logits, correction, gate_up, down, shape, scale, wide, num_tokens);   \
  }                                                                                              \
  AM_EXPORT void am_add_##NAME(T* y, const T* a, const T* b, int64_t n) {                        \
    chosen->NAME.add(y, a, b, n);                                                                \
  }                                                                                              \
  AM_EXPORT void am_scale_##NAME(T* y, const T* x, float by, int64_t n) {                        \
    chosen->NAME.scale(y, x, by, n);                                                             \
  }                                                                                              \
  AM_EXPORT void am_decode_rows_##NAME(T* out, const uint8_t* table, const int64_t* ids,         \
                                       int64_t num_rows, int64_t C, int type) {                  \
    allmetal::decode_rows(out, table, ids, num_rows, C, type);                                   \
  }

AM_API(bf16, uint16_t)
AM_API(f32, float)

AM_EXPORT void am_sampling_f32(int64_t* out, const float* logits, const float* temperature,
                               const int32_t* top_k, const float* top_p, const float* min_p,
                               const float* uniform, int64_t num_rows, int64_t V) {
  chosen->sampling(out, logits, temperature, top_k, top_p, min_p, uniform, num_rows, V);
}

AM_EXPORT int64_t am_panel_bytes(int64_t N, int64_t C, int kind) {
  return chosen->panel_bytes(N, C, kind);
}

AM_EXPORT void am_pack_panels(uint8_t* out, const void* w, const float* scale, int64_t N, int64_t C,
                              int kind) {
  chosen->pack_panels(out, w, scale, N, C, kind);
}

AM_EXPORT void am_linear_panels_bf16(uint16_t* y, const uint16_t* x, const uint8_t* w,
                                     const float* scale, const uint16_t* bias, int64_t M, int64_t N,
                                     int64_t C, int kind, int act_bits) {
  chosen->linear_panels(y, x, w, scale, bias, M, N, C, kind, act_bits);
}

AM_EXPORT void am_widen_bf16(float* y, const uint16_t* x, int64_t n) { chosen->widen(y, x, n); }
AM_EXPORT void am_narrow_bf16(uint16_t* y, const float* x, int64_t n) { chosen->narrow(y, x, n); }

AM_EXPORT void am_copy_rows(uint8_t* out, const uint8_t* in, int64_t num_rows, int64_t bytes,
                            int64_t to, int64_t from) {
  allmetal::copy_rows(out, in, num_rows, bytes, to, from);
}
AM_EXPORT void am_gather_rows(uint8_t* out, const uint8_t* table, const int64_t* ids,
                              int64_t num_rows, int64_t bytes) {
  allmetal::gather_rows(out, table, ids, num_rows, bytes);
}
AM_EXPORT void am_read_state(const int64_t* words, const int32_t* tokens, int32_t* tables,
                             int64_t* token_ids, int64_t* positions, int32_t* seq_lens,
                             int32_t* block_tables, int64_t* slot_mappings, int64_t B, int64_t G,
                             int64_t S, int64_t L, int64_t P, int64_t block_size) {
  allmetal::read_state({B, G, S, L, P, block_size}, words, tokens, tables, token_ids, positions,
                       seq_lens, block_tables, slot_mappings);
}
AM_EXPORT void am_write_state(const int64_t* words, int32_t* tokens, const int64_t* token_ids,
                              const float* logits, int64_t* out, int64_t B, int64_t L, int64_t V) {
  allmetal::write_state(words, tokens, token_ids, logits, out, B, L, V);
}

// ---- programs

#define AM_STEP(NAME) allmetal::function<am_##NAME>(#NAME)
#define AM_STEPS(T)                                                                             \
  AM_STEP(linear_##T), AM_STEP(linear_int8_##T), AM_STEP(linear_blocks_##T),                    \
      AM_STEP(attention_##T), AM_STEP(attention_input_##T), AM_STEP(rms_norm_##T),              \
      AM_STEP(gated_activation_##T), AM_STEP(moe_##T), AM_STEP(add_##T), AM_STEP(scale_##T),        \
      AM_STEP(decode_rows_##T)

// What a program may call.
static const allmetal::Function steps[] = {
    AM_STEPS(bf16),          AM_STEPS(f32),        AM_STEP(sampling_f32), AM_STEP(linear_panels_bf16),
    AM_STEP(widen_bf16),     AM_STEP(narrow_bf16), AM_STEP(copy_rows),    AM_STEP(gather_rows),
    AM_STEP(read_state),     AM_STEP(write_state), {nullptr, 0, nullptr}};

AM_EXPORT allmetal::Program* am_program_new() { return new allmetal::Program(steps); }
AM_EXPORT void am_program_delete(allmetal::Program* program) { delete program; }
AM_EXPORT int am_program_add(allmetal::Program* program, const char* name,
                             const allmetal::Word* arguments, int num_arguments) {
  return program->add(name, arguments, num_arguments);
}
AM_EXPORT void am_program_run(const allmetal::Program* program) { program->run(); }
