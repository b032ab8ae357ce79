// Work split among the pool's threads.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "pool.h"
#include "vec.h"

namespace AM_ISA {

// While one lives, its thread does all of what it would have shared.
class Alone {
 public:
  Alone() : before_(now()) { now() = true; }
  ~Alone() { now() = before_; }
  static bool& now() {
    static thread_local bool alone = false;
    return alone;
  }

 private:
  bool before_;
};

// Memory that a thread keeps from call to call, aligned to 64 bytes.
class Scratch {
 public:
  ~Scratch() { free(at_); }
  void* room(size_t bytes) {
    if (bytes > size_) {
      free(at_);
      size_ = (bytes * 3 / 2 + 4095) / 4096 * 4096;
      at_ = aligned_alloc(64, size_);
    }
    return at_;
  }

 private:
  void* at_ = nullptr;
  size_t size_ = 0;
};

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
  if (num_chunks <= 1 || allmetal::num_threads <= 1 || Alone::now()) {
    for (int64_t i = 0; i < num_chunks; i++) Job::one(&job, i);
  } else {
    allmetal::run(num_chunks, Job::one, &job);
  }
}

}  // namespace AM_ISA
