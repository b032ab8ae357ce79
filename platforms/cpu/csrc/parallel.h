// Work split among the threads torch uses: both go through the one OpenMP runtime of the process.
#pragma once

#include <cstdint>

#include "vec.h"

namespace allmetal {
extern int num_threads;  // set when the device is opened
}

namespace AM_ISA {

// work(begin, end) over chunks of [0, count), handed out as threads come free: a thread that the
// system holds up delays one chunk and not the whole.
template <class Work>
AM_INLINE void parallel(int64_t count, int64_t chunk, const Work& work) {
  const int64_t num_chunks = (count + chunk - 1) / chunk;
  auto one = [&](int64_t i) __attribute__((always_inline)) {
    const int64_t end = (i + 1) * chunk;
    work(i * chunk, end < count ? end : count);
  };
#if defined(_OPENMP)
  const int threads = allmetal::num_threads < num_chunks ? allmetal::num_threads : int(num_chunks);
  if (threads > 1) {
    int64_t next = 0;
#pragma omp parallel num_threads(threads)
    {
      for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < num_chunks;) one(i);
    }
    return;
  }
#endif
  for (int64_t i = 0; i < num_chunks; i++) one(i);
}

}  // namespace AM_ISA
