#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace allmetal {

int num_threads = 1;

namespace {

// Between two kernels of a step the interpreter needs some ten microseconds: a thread that is
// awake for the next one saves waking it up.
constexpr auto STAY_AWAKE = std::chrono::microseconds(100);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void run(int64_t count, void (*work)(const void*, int64_t), const void* context) {
    if (!callers_.try_lock()) {  // another thread's kernel has the pool
      for (int64_t i = 0; i < count; i++) work(context, i);
      return;
    }
    const int64_t wanted = (count < num_threads ? count : num_threads) - 1;
    while (started_ < wanted) start();
    count_ = count;
    work_ = work;
    context_ = context;
    next_.store(0, std::memory_order_relaxed);
    places_.store(wanted, std::memory_order_relaxed);
    workers_.store(0, std::memory_order_release);  // open
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    take();
    close();
    callers_.unlock();
  }

 private:
  static constexpr int64_t CLOSED = int64_t(1) << 32;

  void take() {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;)
      work_(context_, i);
  }

  // No one may join from here on; those that have are waited for.
  void close() {
    workers_.fetch_add(CLOSED, std::memory_order_acq_rel);
    for (int spins = 0; workers_.load(std::memory_order_acquire) != CLOSED; spins++) {
      if (spins < 2000) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

  bool join() {
    int64_t seen = workers_.load(std::memory_order_relaxed);
    do {
      if (seen >= CLOSED || seen >= places_.load(std::memory_order_relaxed)) return false;
    } while (!workers_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
    return true;
  }

  void start() {
    started_++;
    std::thread([this] {
      for (uint64_t seen = 0;;) {
        seen = await(seen);
        if (join()) {
          take();
          workers_.fetch_sub(1, std::memory_order_release);
        }
      }
    }).detach();
  }

  // Returns the generation after `seen`, once there is one.
  uint64_t await(uint64_t seen) {
    const auto until = std::chrono::steady_clock::now() + STAY_AWAKE;
    for (int i = 0;; i++) {
      const uint64_t now = generation_.load(std::memory_order_acquire);
      if (now != seen) return now;
      relax();
      if (i % 64 == 63 && std::chrono::steady_clock::now() > until) break;
    }
    std::unique_lock<std::mutex> lock(sleep_);
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    uint64_t now;
    wake_.wait(lock, [&] { return (now = generation_.load(std::memory_order_seq_cst)) != seen; });
    asleep_.fetch_sub(1, std::memory_order_seq_cst);
    return now;
  }

  std::mutex callers_, sleep_;
  std::condition_variable wake_;
  int64_t started_ = 0;

  // The job at hand; read by those that joined.
  int64_t count_ = 0;
  void (*work_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  std::atomic<int64_t> places_{0};

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> workers_{CLOSED};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> asleep_{0};
};

// Never destroyed: its threads live as long as the process.
std::atomic<Pool*> pool{nullptr};

Pool& the_pool() {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found) return *found;
  static std::mutex making;
  std::lock_guard<std::mutex> lock(making);
  if (!pool.load()) {
#if !defined(_WIN32)
    // A forked child has none of the threads.
    static const int registered = pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });
    (void)registered;
#endif
    pool.store(new Pool, std::memory_order_release);
  }
  return *pool.load();
}

}  // namespace

void run(int64_t count, void (*work)(const void*, int64_t), const void* context) {
  the_pool().run(count, work, context);
}

}  // namespace allmetal
