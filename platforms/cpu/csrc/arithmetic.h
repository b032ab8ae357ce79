// Arithmetic of single elements, and between the two types.
#pragma once

#include "elementwise.h"

namespace AM_ISA {

// work(begin, end) over n elements.
template <class Work>
AM_INLINE void over_elements(int64_t n, const Work& work) {
  parallel(n, WORTH_A_THREAD, work);
}

template <class T>
void add(T* y, const T* a, const T* b, int64_t n) {
  over_elements(n, [=](int64_t i, int64_t end) {
    for (; i + W <= end; i += W) store(y + i, load(a + i) + load(b + i));
    for (; i < end; i++) from_float(to_float(a[i]) + to_float(b[i]), y + i);
  });
}

template <class T>
void scale(T* y, const T* x, float by, int64_t n) {
  over_elements(n, [=](int64_t i, int64_t end) {
    for (; i + W <= end; i += W) store(y + i, load(x + i) * by);
    for (; i < end; i++) from_float(to_float(x[i]) * by, y + i);
  });
}

template <class To, class From>
void convert(To* y, const From* x, int64_t n) {
  over_elements(n, [=](int64_t i, int64_t end) {
    for (; i + W <= end; i += W) store(y + i, load(x + i));
    for (; i < end; i++) from_float(to_float(x[i]), y + i);
  });
}

}  // namespace AM_ISA
