#include "rows.h"

// A few rows a step: one build for all, and no product added in one rounding, so that values are
// those of the format to the bit.
#define AM_ISA rows
#include "blocks.h"

namespace allmetal {

namespace {

template <class F, class T>
void decode(T* out, const uint8_t* table, const int64_t* ids, int64_t num_rows, int64_t C) {
  const int64_t bytes = C / F::ELEMENTS * F::BYTES;
  for (int64_t i = 0; i < num_rows; i++)
    rows::decode_blocks<F>(table + ids[i] * bytes, C, out + i * C);
}

}  // namespace

template <class T>
void decode_rows(T* out, const uint8_t* table, const int64_t* ids, int64_t num_rows, int64_t C,
                 int type) {
  switch (type) {
    case 2: return decode<rows::Q4_0>(out, table, ids, num_rows, C);
    case 3: return decode<rows::Q4_1>(out, table, ids, num_rows, C);
    case 6: return decode<rows::Q5_0>(out, table, ids, num_rows, C);
    case 7: return decode<rows::Q5_1>(out, table, ids, num_rows, C);
    case 8: return decode<rows::Q8_0>(out, table, ids, num_rows, C);
    case 10: return decode<rows::Q2_K>(out, table, ids, num_rows, C);
    case 11: return decode<rows::Q3_K>(out, table, ids, num_rows, C);
    case 12: return decode<rows::Q4_K>(out, table, ids, num_rows, C);
    case 13: return decode<rows::Q5_K>(out, table, ids, num_rows, C);
    case 14: return decode<rows::Q6_K>(out, table, ids, num_rows, C);
    default: __builtin_trap();
  }
}

template void decode_rows<uint16_t>(uint16_t*, const uint8_t*, const int64_t*, int64_t, int64_t, int);
template void decode_rows<float>(float*, const uint8_t*, const int64_t*, int64_t, int64_t, int);

}  // namespace allmetal
