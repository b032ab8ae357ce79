// Attention over a paged cache [blocks, 2, K, block_size, D]: the softmax runs on from one tile of
// keys to the next, so no score is ever kept (Milakov and Gimelshein, arXiv:1805.02867).
//
// A task is some queries of one sequence with all heads that share a key-value head, against a part
// of the sequence's keys.  Where there are fewer tasks than threads, keys are split and the parts'
// results joined (arXiv:2311.01282).
//
// Legend: H query heads, K key-value heads, G = H / K, D head dim, R rows (a query's head each).
#pragma once

#include <cstdlib>

#include "dot.h"
#include "parallel.h"

namespace AM_ISA {

constexpr int64_t MAX_ROWS = 32;  // of a task
constexpr int64_t KEYS = 32;      // taken at a time
constexpr int64_t MAX_D = 256;
constexpr int64_t MIN_PART = 256;  // keys worth a task of their own
constexpr float NONE = -1e30f;     // below every score

struct Shape {
  int64_t B, H, K, D, block_size, window;
  float scale, soft_cap;
};

struct Task {
  int32_t sequence, query, num_queries, part, num_parts;
};

// What has been seen so far: the largest score, the sum of weights, the weighted sum of values.
struct Running {
  alignas(64) float out[MAX_ROWS * MAX_D];
  float top[MAX_ROWS], total[MAX_ROWS];

  void clear(int64_t R, int64_t D) {
    for (int64_t r = 0; r < R; r++) top[r] = NONE, total[r] = 0;
    memset(out, 0, sizeof(float) * R * D);
  }
};

AM_INLINE float exp1(float x) { return exp(broadcast(x))[0]; }

AM_INLINE void scale_row(float* row, int64_t n, float by) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(row + i, load(row + i) * by);
  for (; i < n; i++) row[i] *= by;
}

// acc[MR][V * W] += p[MR][n] . v[n]
template <class T, int MR, int V>
AM_INLINE void weigh_tile(const float* p, const T* v, int64_t ldv, int64_t n, float* acc,
                          int64_t lda) {
  f32 sum[MR][V];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) sum[m][i] = load(acc + m * lda + i * W);
  }
  for (int64_t j = 0; j < n; j++) {
    f32 value[V];
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) value[i] = load(v + j * ldv + i * W);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      f32 weight = broadcast(p[m * KEYS + j]);
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) sum[m][i] = weight * value[i] + sum[m][i];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) {
#pragma GCC unroll 8
    for (int i = 0; i < V; i++) store(acc + m * lda + i * W, sum[m][i]);
  }
}

template <class T, int MR>
__attribute__((noinline)) void weigh_rows(const float* p, const T* v, int64_t n, int64_t D,
                                          float* acc) {
  int64_t d = 0;
  for (; d + 4 * W <= D; d += 4 * W) weigh_tile<T, MR, 4>(p, v + d, D, n, acc + d, D);
  for (; d + W <= D; d += W) weigh_tile<T, MR, 1>(p, v + d, D, n, acc + d, D);
  for (; d < D; d++) {
    for (int m = 0; m < MR; m++) {
      for (int64_t j = 0; j < n; j++) acc[m * D + d] += p[m * KEYS + j] * to_float(v[j * D + d]);
    }
  }
}

template <class T>
AM_INLINE void weigh(const float* p, int64_t R, const T* v, int64_t n, int64_t D, float* acc) {
  const int64_t num_blocks = (R + 5) / 6;
  for (int64_t i = 0; i < num_blocks; i++) {
    const int64_t r = R * i / num_blocks;
    const float* weights = p + r * KEYS;
    float* out = acc + r * D;
    switch (R * (i + 1) / num_blocks - r) {
      case 1: weigh_rows<T, 1>(weights, v, n, D, out); break;
      case 2: weigh_rows<T, 2>(weights, v, n, D, out); break;
      case 3: weigh_rows<T, 3>(weights, v, n, D, out); break;
      case 4: weigh_rows<T, 4>(weights, v, n, D, out); break;
      case 5: weigh_rows<T, 5>(weights, v, n, D, out); break;
      default: weigh_rows<T, 6>(weights, v, n, D, out); break;
    }
  }
}

// One row's scores of `n` keys become weights; keys outside [from, to) are hidden.
AM_INLINE void soften(float* s, int64_t n, int64_t from, int64_t to, const Shape& shape,
                      Running& run, int64_t r) {
  const int64_t D = shape.D;
  const int64_t padded = (n + W - 1) / W * W;
  if (from >= to) {
    for (int64_t j = 0; j < padded; j += W) store(s + j, f32{});
    return;
  }
  for (int64_t j = 0; j < padded; j += W) {
    f32 score = load(s + j) * shape.scale;
    if (shape.soft_cap > 0) score = tanh(score * (1.0f / shape.soft_cap)) * shape.soft_cap;
    store(s + j, score);
  }
  for (int64_t j = 0; j < from; j++) s[j] = NONE;
  for (int64_t j = to; j < padded; j++) s[j] = NONE;
  f32 most = broadcast(run.top[r]);
  for (int64_t j = 0; j < padded; j += W) most = max(most, load(s + j));
  const float top = largest(most);
  if (top > run.top[r]) {
    const float by = exp1(run.top[r] - top);
    run.top[r] = top;
    run.total[r] *= by;
    scale_row(run.out + r * D, D, by);
  }
  f32 total = {};
  for (int64_t j = 0; j < padded; j += W) {
    f32 weight = exp(load(s + j) - top);
    total += weight;
    store(s + j, weight);
  }
  run.total[r] += sum(total);
}

template <class T>
struct Attention {
  T* out;
  const T* q;
  const T* cache;
  const int32_t *block_table, *query_start, *seq_lens;
  const float* sinks;
  int64_t table_stride;
  Shape shape;

  // Keys [first, last) that the task's queries see, whole sequence.
  AM_INLINE void range(const Task& task, int64_t& first, int64_t& last) const {
    const int64_t start = query_start[task.sequence];
    const int64_t num_queries = query_start[task.sequence + 1] - start;
    const int64_t position = seq_lens[task.sequence] - num_queries + task.query;
    last = position + task.num_queries;
    first = shape.window && position + 1 > shape.window ? position + 1 - shape.window : 0;
  }

  // The task's part of its keys, at tiles' borders.
  AM_INLINE void part_range(const Task& task, int64_t& begin, int64_t& end) const {
    int64_t first, last;
    range(task, first, last);
    const int64_t tiles = (last - first + KEYS - 1) / KEYS;
    begin = first + tiles * task.part / task.num_parts * KEYS;
    end = first + tiles * (task.part + 1) / task.num_parts * KEYS;
    if (end > last) end = last;
  }

  void run(const Task& task, int64_t head, Running& state) const {
    const int64_t G = shape.H / shape.K, D = shape.D, R = task.num_queries * G;
    const int64_t start = query_start[task.sequence] + task.query;
    alignas(64) T rows[MAX_ROWS * MAX_D];
    alignas(64) float scores[MAX_ROWS * KEYS];
    alignas(64) float wide[KEYS * MAX_D];
    for (int64_t i = 0; i < task.num_queries; i++)
      memcpy(rows + i * G * D, q + ((start + i) * shape.H + head * G) * D, sizeof(T) * G * D);
    state.clear(R, D);
    int64_t first, last, begin, end;
    range(task, first, last);
    part_range(task, begin, end);
    const int64_t position = last - task.num_queries;
    const int64_t bs = shape.block_size, to_values = shape.K * bs * D;
    const int32_t* table = block_table + task.sequence * table_stride;
    const int64_t page = 2 * to_values, at_head = head * bs * D;
    for (int64_t key = begin, n; key < end; key += n) {
      n = bs - key % bs < KEYS ? bs - key % bs : KEYS;
      if (n > end - key) n = end - key;
      const T* keys = cache + table[key / bs] * page + at_head + key % bs * D;
      dots(rows, D, R, keys, D, n, D, to_values, false, scores, KEYS);
      if (key + n < end) {  // the next keys
        const int64_t next = key + n;
        const T* ahead = cache + table[next / bs] * page + at_head + next % bs * D;
        for (int64_t line = 0; line < n * D * int64_t(sizeof(T)); line += 64)
          prefetch(reinterpret_cast<const char*>(ahead) + line);
      }
      for (int64_t r = 0; r < R; r++) {
        const int64_t seen = position + r / G + 1 - key;  // keys of this tile up to the query
        int64_t from = shape.window ? seen - shape.window : 0;
        if (from < 0) from = 0;
        soften(scores + r * KEYS, n, from, seen < n ? seen : n, shape, state, r);
      }
      const T* values = keys + to_values;
      if (R > 6) {
        widen(values, wide, n * D);
        weigh(scores, R, wide, n, D, state.out);
      } else {
        weigh(scores, R, values, n, D, state.out);
      }
    }
  }

  // The finished rows: divided by the sum of weights, the sink's included.
  void finish(const Task& task, int64_t head, Running& state) const {
    const int64_t G = shape.H / shape.K, D = shape.D;
    for (int64_t r = 0; r < task.num_queries * G; r++) {
      const int64_t h = head * G + r % G;
      float total = state.total[r], by = 1;
      if (sinks) {
        const float top = sinks[h] > state.top[r] ? sinks[h] : state.top[r];
        by = exp1(state.top[r] - top);
        total = total * by + exp1(sinks[h] - top);
      }
      by /= total;
      const float* from = state.out + r * D;
      T* to = out + ((query_start[task.sequence] + task.query + r / G) * shape.H + h) * D;
      int64_t d = 0;
      for (; d + W <= D; d += W) store(to + d, load(from + d) * by);
      for (; d < D; d++) from_float(from[d] * by, to + d);
    }
  }

  // `other` has seen more keys of the same rows.
  static void join(Running& state, const Running& other, int64_t R, int64_t D) {
    for (int64_t r = 0; r < R; r++) {
      const float top = state.top[r] > other.top[r] ? state.top[r] : other.top[r];
      const float a = exp1(state.top[r] - top), b = exp1(other.top[r] - top);
      state.top[r] = top;
      state.total[r] = state.total[r] * a + other.total[r] * b;
      for (int64_t d = 0; d < D; d++)
        state.out[r * D + d] = state.out[r * D + d] * a + other.out[r * D + d] * b;
    }
  }

  // The tasks of all sequences, longest last in each; counts only where `tasks` is null.
  int64_t plan(Task* tasks, int64_t num_parts) const {
    const int64_t G = shape.H / shape.K;
    const int64_t most = MAX_ROWS / G;
    int64_t count = 0;
    for (int64_t b = 0; b < shape.B; b++) {
      const int64_t num_queries = query_start[b + 1] - query_start[b];
      const int64_t tiles = (num_queries + most - 1) / most;
      for (int64_t i = tiles - 1; i >= 0; i--) {
        const int64_t query = num_queries * i / tiles;
        Task task = {int32_t(b), int32_t(query),
                     int32_t(num_queries * (i + 1) / tiles - query), 0, 1};
        int64_t first, last;
        range(task, first, last);
        int64_t parts = (last - first) / MIN_PART;
        parts = parts > num_parts ? num_parts : parts < 1 ? 1 : parts;
        for (int64_t part = 0; part < parts; part++, count++) {
          task.part = int32_t(part);
          task.num_parts = int32_t(parts);
          if (tasks) tasks[count] = task;
        }
      }
    }
    return count;
  }

  void operator()() const {
    const int64_t K = shape.K, wanted = int64_t(allmetal::num_threads) * 2;
    const int64_t whole = plan(nullptr, 1);
    if (!whole) return;
    const int64_t num_parts = whole * K >= wanted ? 1 : (wanted + whole * K - 1) / (whole * K);
    const int64_t count = num_parts == 1 ? whole : plan(nullptr, num_parts);
    Task* tasks = static_cast<Task*>(malloc(sizeof(Task) * count));
    plan(tasks, num_parts);
    const bool split = count > whole;
    Running* parts = split ? static_cast<Running*>(aligned_alloc(64, sizeof(Running) * count * K))
                           : nullptr;
    parallel(count * K, 1, [&](int64_t i, int64_t) {
      const Task& task = tasks[i / K];
      if (split) {
        run(task, i % K, parts[i]);
      } else {
        Running state;
        run(task, i % K, state);
        finish(task, i % K, state);
      }
    });
    for (int64_t i = 0; split && i < count; i++) {
      if (tasks[i].part) continue;
      for (int64_t head = 0; head < K; head++) {
        Running& state = parts[i * K + head];
        const int64_t R = tasks[i].num_queries * (shape.H / K);
        for (int64_t part = 1; part < tasks[i].num_parts; part++)
          join(state, parts[(i + part) * K + head], R, shape.D);
        finish(tasks[i], head, state);
      }
    }
    free(parts);
    free(tasks);
  }
};

template <class T>
void attention(T* out, const T* q, const T* cache, const int32_t* block_table,
               int64_t table_stride, const int32_t* query_start, const int32_t* seq_lens,
               const float* sinks, int64_t B, int64_t H, int64_t K, int64_t D, int64_t block_size,
               int64_t window, float scale, float soft_cap) {
  Attention<T>{out,   q,           cache, block_table, query_start, seq_lens,
               sinks, table_stride, {B, H, K, D, block_size, window, scale, soft_cap}}();
}

}  // namespace AM_ISA
