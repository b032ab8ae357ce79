// Rows of a table in GGML blocks, taken apart: what a vocabulary is looked up in.
#pragma once

#include <cstdint>

namespace allmetal {

// out[i] = row ids[i] of the table, C values; `type` is GGML's number of the format.
template <class T>
void decode_rows(T* out, const uint8_t* table, const int64_t* ids, int64_t num_rows, int64_t C,
                 int type);

}  // namespace allmetal
