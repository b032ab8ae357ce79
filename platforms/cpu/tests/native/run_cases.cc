// Runs portable kernels on cases that come on standard input, and gives all their buffers back on
// standard output: so a library for another processor is tested where only an emulator runs it.
//
// A case: the kernel's name; then its integers (int64), its floats and its buffers, each list in the
// order of the parameters and behind its length (int64).  A buffer is its bytes behind their number,
// which is -1 for a null pointer.  All little endian.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../../csrc/kernels.h"
#include "../../csrc/pool.h"

namespace {

template <class T>
bool read(T* to, size_t count) {
  return std::fread(to, sizeof(T), count, stdin) == count;
}

template <class T>
T must_read() {
  T value;
  if (!read(&value, 1)) std::abort();
  return value;
}

template <class T>
std::vector<T> read_list() {
  std::vector<T> list(must_read<int64_t>());
  if (!read(list.data(), list.size())) std::abort();
  return list;
}

struct Buffer {
  bool null;
  std::vector<uint8_t> bytes;
};

struct Case {
  std::vector<int64_t> ints = read_list<int64_t>();
  std::vector<float> floats = read_list<float>();
  std::vector<Buffer> buffers;
  size_t next_int = 0, next_float = 0, next_buffer = 0;

  Case() {
    buffers.resize(must_read<int64_t>());
    for (Buffer& buffer : buffers) {
      const int64_t size = must_read<int64_t>();
      buffer.null = size < 0;
      buffer.bytes.resize(size < 0 ? 0 : size);
      if (!read(buffer.bytes.data(), buffer.bytes.size())) std::abort();
    }
  }

  template <class A>
  A next() {
    if constexpr (std::is_pointer_v<A>) {
      Buffer& buffer = buffers.at(next_buffer++);
      return buffer.null ? nullptr : reinterpret_cast<A>(buffer.bytes.data());
    } else if constexpr (std::is_floating_point_v<A>) {
      return floats.at(next_float++);
    } else {
      return A(ints.at(next_int++));
    }
  }
};

template <class... A>
std::function<void(Case&)> taking(void (*kernel)(A...)) {
  return [=](Case& given) {
    const std::tuple<A...> arguments{given.next<A>()...};  // braces: from left to right
    std::apply(kernel, arguments);
  };
}

template <class T>
void name(std::map<std::string, std::function<void(Case&)>>& all, const std::string& suffix,
          const allmetal::Typed<T>& typed) {
  all["linear" + suffix] = taking(typed.linear);
  all["linear_int8" + suffix] = taking(typed.linear_int8);
  all["linear_blocks" + suffix] = taking(typed.linear_blocks);
  all["attention" + suffix] = taking(typed.attention);
  all["attention_input" + suffix] = taking(typed.attention_input);
  all["rms_norm" + suffix] = taking(typed.rms_norm);
  all["gated_activation" + suffix] = taking(typed.gated_activation);
}

}  // namespace

int main() {
  allmetal::num_threads = 2;
  std::map<std::string, std::function<void(Case&)>> kernels;
  name(kernels, "_bf16", allmetal::portable_kernels.bf16);
  name(kernels, "_f32", allmetal::portable_kernels.f32);
  kernels["sampling_f32"] = taking(allmetal::portable_kernels.sampling);
  int64_t length;
  while (read(&length, 1)) {
    std::string which(length, ' ');
    if (!read(which.data(), which.size())) std::abort();
    Case given;
    kernels.at(which)(given);
    for (const Buffer& buffer : given.buffers) {
      std::fwrite(buffer.bytes.data(), 1, buffer.bytes.size(), stdout);
    }
    std::fflush(stdout);
  }
}
