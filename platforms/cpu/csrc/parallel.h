// Work split among the pool's threads.
#pragma once

#include <cstdint>

#include "pool.h"
#include "vec.h"

namespace AM_ISA {

// work(begin, end) over chunks of [0, count), handed out as threads come free.
template <class Work>
AM_INLINE void parallel(int64_t count, int64_t chunk, const Work& work) {
  const int64_t num_chunks = (count + chunk - 1) / chunk;
  struct Job {
    const Work* work;
    int64_t count, chunk;
    static void one(const void* self, int64_t i) {
      const Job& job = *static_cast<const Job*>(self);
      const int64_t end = (i + 1) * job.chunk;
      (*job.work)(i * job.chunk, end < job.count ? end : job.count);
    }
  };
  const Job job = {&work, count, chunk};
  if (num_chunks <= 1 || allmetal::num_threads <= 1) {
    for (int64_t i = 0; i < num_chunks; i++) Job::one(&job, i);
  } else {
    allmetal::run(num_chunks, Job::one, &job);
  }
}

}  // namespace AM_ISA
