// A pool whose callers never wait for a thread that has not come.
//
// Teams that meet at a barrier stand still as long as the system keeps one of them from running,
// and on a machine that does anything else it does so thousands of times a second.  Here the caller
// works through the chunks itself, whoever of the pool is awake takes some of them, and in the end
// the caller waits only for those that took one.
#pragma once

#include <cstdint>

namespace allmetal {

extern int num_threads;  // the caller's included; set when the device is opened

// work(context, i) for i in [0, count), once each, in any order, by several threads.
void run(int64_t count, void (*work)(const void* context, int64_t i), const void* context);

}  // namespace allmetal
