// Rows moved from place to place, and what decoding sequences own between steps.
#pragma once

#include <cstdint>

namespace allmetal {

// `bytes` of each row; rows lie `to` and `from` bytes apart.
void copy_rows(uint8_t* out, const uint8_t* in, int64_t num_rows, int64_t bytes, int64_t to,
               int64_t from);

// out[i] = table[ids[i]], rows of `bytes`.
void gather_rows(uint8_t* out, const uint8_t* table, const int64_t* ids, int64_t num_rows,
                 int64_t bytes);

// The two halves of DecodeStateOp in allmetal.platform.specs: B sequences, G groups, S slots of L
// tokens and P blocks.
struct DecodeState {
  int64_t B, G, S, L, P, block_size;
};
void read_state(const DecodeState& s, const int64_t* words, const int32_t* tokens, int32_t* tables,
                int64_t* token_ids, int64_t* positions, int32_t* seq_lens, int32_t* block_tables,
                int64_t* slot_mappings);
// logits [B, V], or null.
void write_state(const int64_t* words, int32_t* tokens, const int64_t* token_ids,
                 const float* logits, int64_t* out, int64_t B, int64_t L, int64_t V);

}  // namespace allmetal
