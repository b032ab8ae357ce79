/* How fast this machine's memory can be read by so many threads, right now: GB/s on standard
 * output, the best of five walks.  cc -O3 -march=native -pthread probe.c -o probe && ./probe 2 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 512 << 20, WALKS = 5, MOST = 64, LANES = 64 };

static int threads;
static pthread_barrier_t barrier;
static double begins[MOST], ends[MOST];
static volatile uint64_t sink;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void* walk(void* argument) {
  const int me = (int)(intptr_t)argument;
  uint64_t* words = aligned_alloc(2 << 20, BYTES);
  memset(words, me + 1, BYTES);
  for (int i = 0; i < WALKS; i++) {
    uint64_t sums[LANES] = {0};
    pthread_barrier_wait(&barrier);
    begins[me] = now();
    for (size_t at = 0; at < BYTES / sizeof *words; at += LANES)
      for (int lane = 0; lane < LANES; lane++) sums[lane] ^= words[at + lane];
    ends[me] = now();
    for (int lane = 0; lane < LANES; lane++) sink ^= sums[lane];
    pthread_barrier_wait(&barrier);
    if (me == 0) {
      double begin = begins[0], end = ends[0];
      for (int t = 1; t < threads; t++) {
        if (begins[t] < begin) begin = begins[t];
        if (ends[t] > end) end = ends[t];
      }
      printf("%.2f\n", 1e-9 * BYTES * threads / (end - begin));
    }
    pthread_barrier_wait(&barrier);
  }
  free(words);
  return NULL;
}

int main(int argc, char** argv) {
  threads = argc > 1 ? atoi(argv[1]) : 1;
  if (threads < 1 || threads > MOST) return 2;
  pthread_barrier_init(&barrier, NULL, threads);
  pthread_t all[MOST];
  for (intptr_t i = 0; i < threads; i++) pthread_create(&all[i], NULL, walk, (void*)i);
  for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
}
