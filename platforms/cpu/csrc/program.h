// Calls of this library's functions, noted once and made again and again: a whole step of a model
// without the interpreter between its kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace allmetal {

// An argument: an integer, an address, or the bits of a float.
typedef uint64_t Word;

struct Function {
  const char* name;
  int num_arguments;
  void (*call)(const Word* arguments);
};

// Functions are looked up by name in `functions`, which ends with one that has none.
class Program {
 public:
  explicit Program(const Function* functions) : functions_(functions) {}

  // False where there is no such function of so many arguments.
  bool add(const char* name, const Word* arguments, int num_arguments);
  void run() const;

 private:
  struct Call {
    const Function* function;
    size_t first;  // of its arguments
  };
  const Function* functions_;
  std::vector<Call> calls_;
  std::vector<Word> arguments_;
};

template <class T>
T argument(Word word) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(word);
  } else if constexpr (std::is_same_v<T, float>) {
    const uint32_t bits = uint32_t(word);
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
  } else {
    static_assert(std::is_integral_v<T>, "an integer, an address or a float");
    return T(word);
  }
}

template <class F>
struct Calling;

template <class... A>
struct Calling<void (*)(A...)> {
  static constexpr int COUNT = sizeof...(A);

  template <size_t... I>
  static void call(void (*function)(A...), const Word* words, std::index_sequence<I...>) {
    function(argument<A>(words[I])...);
  }
  template <void (*FUNCTION)(A...)>
  static void again(const Word* words) {
    call(FUNCTION, words, std::index_sequence_for<A...>());
  }
};

// An entry of a table of functions.
template <auto FUNCTION>
constexpr Function function(const char* name) {
  typedef Calling<decltype(FUNCTION)> As;
  return {name, As::COUNT, As::template again<FUNCTION>};
}

}  // namespace allmetal
