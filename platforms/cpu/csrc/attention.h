// Attention over a paged cache [blocks, 2, K, block_size, D].
//
// A task is some queries of one sequence with all heads that share a key-value head, against a part
// of the sequence's keys.  Where there are fewer tasks than threads, keys are split and the parts'
// results joined (arXiv:2311.01282).
//
// Legend: H query heads, K key-value heads, G = H / K, D head dim, R rows (a query's head each).
#pragma once

#include <cstdlib>

#include "attend.h"
#include "parallel.h"

namespace AM_ISA {

constexpr int64_t MIN_PART = 256;  // keys worth a task of their own

struct Shape {
  int64_t B, H, K, D, block_size, window;
  float scale, soft_cap;
};

struct Task {
  int32_t sequence, query, num_queries, part, num_parts;
};

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

  // Where key `key` of a task's sequence lies, for one head.
  AM_INLINE const T* key_at(const int32_t* table, int64_t head, int64_t key) const {
    const int64_t bs = shape.block_size;
    return cache + ((table[key / bs] * 2 * shape.K + head) * bs + key % bs) * shape.D;
  }

  // `next` heads of the same task follow on this thread: their first keys are asked for in time.
  void run(const Task& task, int64_t head, int64_t next, Running& state) const {
    const int64_t G = shape.H / shape.K, D = shape.D, R = task.num_queries * G;
    const int64_t start = query_start[task.sequence] + task.query;
    alignas(64) T rows[MAX_ROWS * MAX_D];
    for (int64_t i = 0; i < task.num_queries; i++)
      memcpy(rows + i * G * D, q + ((start + i) * shape.H + head * G) * D, sizeof(T) * G * D);
    state.clear(R, D);
    int64_t first, last, begin, end;
    range(task, first, last);
    part_range(task, begin, end);
    const int64_t position = last - task.num_queries;
    const int32_t* table = block_table + task.sequence * table_stride;
    if constexpr (Packed<T>::HAS) {
      if (R > FEW_ROWS && D % 2 == 0) {
        many(rows, R, position, table, head, begin, end, state);
        return;
      }
    }
    few(rows, R, position, table, head, next, begin, end, state);
  }

  AM_INLINE void soften_all(float* scores, int64_t R, int64_t position, int64_t key, int64_t n,
                            Running& state) const {
    const int64_t G = shape.H / shape.K;
    for (int64_t r = 0; r < R; r++) {
      const int64_t seen = position + r / G + 1 - key;  // keys of this tile up to the query
      int64_t from = shape.window ? seen - shape.window : 0;
      if (from < 0) from = 0;
      soften(scores + r * KEYS, n, from, seen < n ? seen : n, shape.scale, shape.soft_cap, state,
             r);
    }
  }

  AM_INLINE void few(const T* rows, int64_t R, int64_t position, const int32_t* table,
                     int64_t head, int64_t next, int64_t begin, int64_t end,
                     Running& state) const {
    const int64_t D = shape.D, bs = shape.block_size, to_values = shape.K * bs * D;
    alignas(64) float scores[MAX_ROWS * KEYS];
    alignas(64) float wide[KEYS * MAX_D];
    for (int64_t key = begin, n; key < end; key += n) {
      n = bs - key % bs < KEYS ? bs - key % bs : KEYS;
      if (n > end - key) n = end - key;
      const T* keys = key_at(table, head, key);
      int64_t ahead = 0;  // from these keys to the next, and so from values to values
      if (key + n < end) {
        ahead = key_at(table, head, key + n) - keys;
      } else if (next) {
        ahead = key_at(table, head + 1, begin) - keys;
      }
      dots(rows, D, R, keys, D, n, D, ahead, false, scores, KEYS);
      soften_all(scores, R, position, key, n, state);
      const T* values = keys + to_values;
      if (R > FEW_ROWS) {
        widen(values, wide, n * D);
        weigh(scores, R, wide, n, D, 0, state.out, state.stride);
      } else {
        weigh(scores, R, values, n, D, ahead, state.out, state.stride);
      }
    }
  }

  AM_INLINE void many(const T* rows, int64_t R, int64_t position, const int32_t* table,
                      int64_t head, int64_t begin, int64_t end, Running& state) const {
    const int64_t D = shape.D, to_values = shape.K * shape.block_size * D;
    alignas(64) float scores[MAX_ROWS * KEYS];
    Packed<T> tile;
    for (int64_t key = begin; key < end; key += KEYS) {
      const int64_t n = end - key < KEYS ? end - key : KEYS;
      tile.take([=](int64_t j) { return key_at(table, head, key + j); }, n, D, to_values);
      tile.score(rows, R, D, scores);
      soften_all(scores, R, position, key, n, state);
      tile.weigh(scores, R, n, D, state);
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
      const float* from = state.out + r * state.stride;
      T* to = out + ((query_start[task.sequence] + task.query + r / G) * shape.H + h) * D;
      int64_t d = 0;
      for (; d + W <= D; d += W) store(to + d, load(from + d) * by);
      for (; d < D; d++) from_float(from[d] * by, to + d);
    }
  }

  // `other` has seen more keys of the same rows.
  static void join(Running& state, const Running& other, int64_t R) {
    for (int64_t r = 0; r < R; r++) {
      const float top = state.top[r] > other.top[r] ? state.top[r] : other.top[r];
      const float a = exp1(state.top[r] - top), b = exp1(other.top[r] - top);
      state.top[r] = top;
      state.total[r] = state.total[r] * a + other.total[r] * b;
      const int64_t row = r * state.stride;
      for (int64_t d = row; d < row + state.stride; d++)
        state.out[d] = state.out[d] * a + other.out[d] * b;
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
    // Heads of a sequence lie side by side: a thread takes some in a row where there is enough.
    int64_t chunk = count * K / (wanted * 4);
    chunk = chunk < 1 ? 1 : chunk > K ? K : chunk;
    parallel(count * K, chunk, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const Task& task = tasks[i / K];
        const int64_t head = i % K, next = i + 1 < end && head + 1 < K;
        if (split) {
          run(task, head, next, parts[i]);
        } else {
          Running state;
          run(task, head, next, state);
          finish(task, head, state);
        }
      }
    });
    for (int64_t i = 0; split && i < count; i++) {
      if (tasks[i].part) continue;
      for (int64_t head = 0; head < K; head++) {
        Running& state = parts[i * K + head];
        const int64_t R = tasks[i].num_queries * (shape.H / K);
        for (int64_t part = 1; part < tasks[i].num_parts; part++)
          join(state, parts[(i + part) * K + head], R);
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
