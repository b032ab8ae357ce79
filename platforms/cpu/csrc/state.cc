#include "state.h"

#include <cmath>
#include <cstring>

namespace allmetal {

void copy_rows(uint8_t* out, const uint8_t* in, int64_t num_rows, int64_t bytes, int64_t to,
               int64_t from) {
  for (int64_t i = 0; i < num_rows; i++) std::memcpy(out + i * to, in + i * from, bytes);
}

void gather_rows(uint8_t* out, const uint8_t* table, const int64_t* ids, int64_t num_rows,
                 int64_t bytes) {
  for (int64_t i = 0; i < num_rows; i++)
    std::memcpy(out + i * bytes, table + ids[i] * bytes, bytes);
}

void read_state(const DecodeState& s, const int64_t* words, const int32_t* tokens, int32_t* tables,
                int64_t* token_ids, int64_t* positions, int32_t* seq_lens, int32_t* block_tables,
                int64_t* slot_mappings) {
  for (int64_t b = 0; b < s.B; b++) {
    const int64_t slot = words[b], length = words[s.B + b], position = length - 1;
    token_ids[b] = tokens[slot * s.L + position];
    positions[b] = position;
    seq_lens[b] = int32_t(length);
    const int64_t block = position / s.block_size;
    for (int64_t g = 0; g < s.G; g++) {
      int32_t* table = tables + (g * s.S + slot) * s.P;
      const int64_t opened = words[(2 + g) * s.B + b];
      if (opened > 0) table[block] = int32_t(opened);
      // What lies behind is never read.
      std::memcpy(block_tables + (g * s.B + b) * s.P, table, sizeof(int32_t) * (block + 1));
      slot_mappings[g * s.B + b] = table[block] * s.block_size + position % s.block_size;
    }
  }
}

void write_state(const int64_t* words, int32_t* tokens, const int64_t* token_ids,
                 const float* logits, int64_t* out, int64_t B, int64_t L, int64_t V) {
  for (int64_t b = 0; b < B; b++) {
    int64_t token = token_ids[b];
    if (logits && (token < 0 || token >= V || !std::isfinite(logits[b * V + token]))) token = -1;
    out[b] = token;
    tokens[words[b] * L + words[B + b]] = int32_t(token < 0 ? 0 : token);
  }
}

}  // namespace allmetal
