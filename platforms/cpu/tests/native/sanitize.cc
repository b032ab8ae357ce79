// Every kernel over odd shapes with buffers of exactly the size it may touch, for the address and
// undefined behaviour sanitizers.  Whether results are right is tested from Python.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#define AM_API(NAME, T)                                                                          \
  extern "C" void am_linear_##NAME(T*, const T*, const T*, const T*, int64_t, int64_t, int64_t); \
  extern "C" void am_linear_int8_##NAME(T*, const T*, const int8_t*, const float*, const T*,     \
                                        int64_t, int64_t, int64_t, int64_t);                     \
  extern "C" void am_linear_blocks_##NAME(T*, const T*, const uint8_t*, const T*, int64_t,       \
                                          int64_t, int64_t, int);                                \
  extern "C" void am_attention_##NAME(T*, const T*, const T*, const int32_t*, int64_t,           \
                                      const int32_t*, const int32_t*, const float*, int64_t,     \
                                      int64_t, int64_t, int64_t, int64_t, int64_t, float,        \
                                      float);                                                    \
  extern "C" void am_attention_input_##NAME(T*, const T*, const int64_t*, const float*, T*,      \
                                            const int64_t*, const T*, const T*, int64_t,         \
                                            int64_t, int64_t, int64_t, int64_t, int64_t, int,    \
                                            int, float, float);                                  \
  extern "C" void am_rms_norm_##NAME(T*, T*, const T*, const T*, const T*, int64_t, int64_t,     \
                                     float, float, int);                                         \
  extern "C" void am_gated_activation_##NAME(T*, const T*, int64_t, int64_t, int);              \
  extern "C" void am_moe_##NAME(T*, const T*, const void*, const float*, const int64_t*,         \
                                const int64_t*, const int64_t*, float, int, int64_t);            \
  extern "C" void am_decode_rows_##NAME(T*, const uint8_t*, const int64_t*, int64_t, int64_t,    \
                                        int);

AM_API(bf16, uint16_t)
AM_API(f32, float)
extern "C" void am_sampling_f32(int64_t*, const float*, const float*, const int32_t*, const float*,
                                const float*, const float*, int64_t, int64_t);
extern "C" int64_t am_panel_bytes(int64_t, int64_t, int);
extern "C" void am_pack_panels(uint8_t*, const void*, const float*, int64_t, int64_t, int);
extern "C" void am_linear_panels_bf16(uint16_t*, const uint16_t*, const uint8_t*, const float*,
                                      const uint16_t*, int64_t, int64_t, int64_t, int, int);
struct Program;
extern "C" Program* am_program_new();
extern "C" void am_program_delete(Program*);
extern "C" int am_program_add(Program*, const char*, const uint64_t*, int);
extern "C" void am_program_run(const Program*);
extern "C" void am_set_threads(int);
extern "C" void am_limit_isa(const char*);
extern "C" const char* am_isa();

namespace {

std::mt19937 rng{std::random_device{}()};

int64_t upto(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

template <class T>
T value();
template <>
float value<float>() { return std::normal_distribution<float>()(rng); }
template <>
uint16_t value<uint16_t>() {  // a bfloat16 between -2 and 2
  return uint16_t(upto(0, 1) << 15 | upto(0x3e00, 0x3fff));
}
template <>
int8_t value<int8_t>() { return int8_t(upto(-128, 127)); }
template <>
uint8_t value<uint8_t>() { return uint8_t(upto(0, 255)); }

template <class T>
std::vector<T> some(int64_t n) {
  std::vector<T> out(n);
  for (T& x : out) x = value<T>();
  return out;
}

struct Bf16 {
  typedef uint16_t T;
  static constexpr auto linear = am_linear_bf16;
  static constexpr auto linear_int8 = am_linear_int8_bf16;
  static constexpr auto linear_blocks = am_linear_blocks_bf16;
  static constexpr auto attention = am_attention_bf16;
  static constexpr auto attention_input = am_attention_input_bf16;
  static constexpr auto rms_norm = am_rms_norm_bf16;
  static constexpr auto gated_activation = am_gated_activation_bf16;
  static constexpr auto moe = am_moe_bf16;
  static constexpr auto decode_rows = am_decode_rows_bf16;
};

struct F32 {
  typedef float T;
  static constexpr auto linear = am_linear_f32;
  static constexpr auto linear_int8 = am_linear_int8_f32;
  static constexpr auto linear_blocks = am_linear_blocks_f32;
  static constexpr auto attention = am_attention_f32;
  static constexpr auto attention_input = am_attention_input_f32;
  static constexpr auto rms_norm = am_rms_norm_f32;
  static constexpr auto gated_activation = am_gated_activation_f32;
  static constexpr auto moe = am_moe_f32;
  static constexpr auto decode_rows = am_decode_rows_f32;
};

struct Format {  // of GGML
  int type, elements, bytes;
};
const Format formats[] = {
    {2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},    {8, 32, 34},
    {10, 256, 84},  {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210}};

template <class K>
void linears() {
  typedef typename K::T T;
  const int64_t M = upto(0, 1) ? upto(0, 8) : upto(0, 210), N = upto(1, 150);
  const int64_t C = upto(0, 1) ? upto(1, 70) : upto(1, 1100);
  auto x = some<T>(M * C), y = some<T>(M * N), bias = some<T>(N);
  const T* b = upto(0, 1) ? bias.data() : nullptr;
  K::linear(y.data(), x.data(), some<T>(N * C).data(), b, M, N, C);
  K::linear_int8(y.data(), x.data(), some<int8_t>(N * C).data(), some<float>(N).data(), b, M, N, C,
                 0);
  const int64_t group = upto(1, 40), groups = upto(1, 9), wide = group * groups;
  K::linear_int8(y.data(), some<T>(M * wide).data(), some<int8_t>(N * wide).data(),
                 some<float>(N * groups).data(), b, M, N, wide, group);
  for (const auto& [type, elements, bytes] : formats) {
    const int64_t blocks = upto(1, elements == 32 ? 12 : 5), channels = blocks * elements;
    K::linear_blocks(y.data(), some<T>(M * channels).data(), some<uint8_t>(N * blocks * bytes).data(),
                     b, M, N, channels, type);
  }
}

// Rows of a vocabulary in blocks, the last one too.
template <class K>
void tables() {
  for (const auto& [type, elements, bytes] : formats) {
    const int64_t rows = upto(1, 9), blocks = upto(1, 5), C = blocks * elements;
    std::vector<int64_t> ids(upto(0, 6));
    for (int64_t& id : ids) id = upto(0, 3) ? upto(0, rows - 1) : rows - 1;
    K::decode_rows(some<typename K::T>(ids.size() * C).data(),
                   some<uint8_t>(rows * blocks * bytes).data(), ids.data(), int64_t(ids.size()), C,
                   type);
  }
}

// An expert's matrix of N x C, stored as experts.h says.
struct Expert {
  std::vector<uint8_t> bytes;
  std::vector<float> scale;
  uint8_t* panels = nullptr;

  template <class T>
  Expert(int64_t N, int64_t C, int64_t form, T) {
    if (form == 0) {
      auto w = some<T>(N * C);
      bytes.resize(N * C * sizeof(T));
      std::memcpy(bytes.data(), w.data(), bytes.size());
    } else if (form == 1) {
      bytes = some<uint8_t>(N * C), scale = some<float>(N);
    } else {
      bytes = some<uint8_t>(N * C / 32 * 34);
      if (form == 2) return;
      panels = static_cast<uint8_t*>(std::aligned_alloc(64, am_panel_bytes(N, C, 8)));
      am_pack_panels(panels, bytes.data(), nullptr, N, C, 8);
    }
  }
  Expert(Expert&& other) : bytes(std::move(other.bytes)), scale(std::move(other.scale)) {
    std::swap(panels, other.panels);
  }
  ~Expert() { std::free(panels); }

  int64_t at() const { return reinterpret_cast<int64_t>(panels ? panels : bytes.data()); }
  int64_t scales() const { return reinterpret_cast<int64_t>(scale.empty() ? nullptr : scale.data()); }
};

template <class K>
void experts() {
  typedef typename K::T T;
  const int64_t groups = upto(0, 1) ? 1 : upto(2, 4), E = groups * upto(2, 6);
  const int64_t top_groups = upto(1, groups), k = upto(1, E / groups * top_groups);
  const int64_t M = upto(0, 1) ? upto(0, 3) : upto(0, 60), C = 32 * upto(1, 4), I = 32 * upto(1, 3);
  int64_t forms[2];
  for (int64_t& form : forms) {
    const bool panels = sizeof(T) == 2 && am_panel_bytes(32, 32, 8);
    form = upto(0, panels ? 3 : 2);
  }
  std::vector<Expert> all;
  std::vector<int64_t> gate_up, down;
  for (int64_t e = 0; e < E; e++) {
    all.emplace_back(2 * I, C, forms[0], T());
    gate_up.push_back(all.back().at()), gate_up.push_back(all.back().scales());
    all.emplace_back(C, I, forms[1], T());
    down.push_back(all.back().at()), down.push_back(all.back().scales());
  }
  const int64_t kinds[] = {0, 0, 8, 8};
  const int64_t shape[] = {E, C, I, upto(0, 3), k, upto(0, 1), upto(0, 1), groups, top_groups,
                           forms[0], forms[1], kinds[forms[0]], kinds[forms[1]], 16, 16};
  auto wide = some<float>(M * E), correction = some<float>(E);
  auto narrow = some<T>(M * E);
  for (int64_t i = 0; i < M * E; i++) {
    if (upto(0, 9) == 0) wide[i] = upto(0, 1) ? std::nanf("") : -INFINITY;
    if (i % E == 0 && upto(0, 1)) wide[i] += 1000;  // all to one
  }
  const bool is_wide = upto(0, 1);
  const void* logits = is_wide ? static_cast<void*>(wide.data()) : narrow.data();
  K::moe(some<T>(M * C).data(), some<T>(M * C).data(), logits,
         upto(0, 1) ? correction.data() : nullptr, gate_up.data(), down.data(), shape, 1.5f, is_wide,
         M);
}

// Weights of all kinds of panels, where the instruction set has them.
void panels() {
  struct Kind {
    int kind, elements, bytes, act_bits;
  };
  static const Kind kinds[] = {
      {2, 32, 18, 16},   {3, 32, 20, 16},    {6, 32, 22, 16},    {7, 32, 24, 16},
      {8, 32, 34, 16},   {12, 256, 144, 16}, {13, 256, 176, 16}, {14, 256, 210, 16},
      {8000, 1, 1, 16},  {8000, 1, 1, 8},    {8032, 32, 32, 16}, {8064, 64, 64, 8},
      {8128, 128, 128, 16}, {4000, 1, 1, 16}, {4000, 1, 1, 8},   {4032, 32, 32, 8},
      {4064, 64, 64, 16},   {4128, 128, 128, 16}, {16000, 2, 4, 16}};
  const int64_t M = upto(0, 1) ? upto(0, 8) : upto(0, 300), N = upto(1, 150);
  auto y = some<uint16_t>(M * N), bias = some<uint16_t>(N);
  const uint16_t* b = upto(0, 1) ? bias.data() : nullptr;
  for (const auto& [kind, elements, bytes, act_bits] : kinds) {
    const int64_t blocks = upto(1, elements < 32 ? 500 : elements == 256 ? 5 : 12);
    const int64_t C = blocks * elements, size = am_panel_bytes(N, C, kind);
    if (!size) continue;
    auto w = some<uint8_t>(N * blocks * bytes);
    auto scale = some<float>(kind >= 4000 ? N * blocks : 1), whole = some<float>(N);
    auto* packed = static_cast<uint8_t*>(std::aligned_alloc(64, size));
    am_pack_panels(packed, w.data(), scale.data(), N, C, kind);
    am_linear_panels_bf16(y.data(), some<uint16_t>(M * C).data(), packed,
                          kind == 8000 || kind == 4000 ? whole.data() : nullptr, b, M, N, C, kind,
                          act_bits);
    std::free(packed);
  }
}

template <class K>
void attentions() {
  typedef typename K::T T;
  const int64_t B = upto(0, 4), KV = upto(1, 3), H = KV * upto(1, 9), D = upto(1, 2) * upto(1, 64);
  const int64_t bs = upto(0, 1) ? 16 * upto(1, 3) : upto(1, 40);
  std::vector<int32_t> starts = {0}, lens, table;
  int64_t most = 1, blocks = 1;
  for (int64_t b = 0; b < B; b++) {
    const int64_t query = upto(0, 1) ? 1 : upto(1, 80), len = query + upto(0, 300);
    starts.push_back(int32_t(starts.back() + query));
    lens.push_back(int32_t(len));
    most = std::max(most, (len + bs - 1) / bs);
  }
  for (int64_t b = 0; b < B; b++) {
    for (int64_t p = 0; p < most; p++)
      table.push_back(p < (lens[b] + bs - 1) / bs ? int32_t(blocks++) : 0);
  }
  const int64_t T_ = starts.back();
  auto q = some<T>(T_ * H * D), out = some<T>(T_ * H * D), cache = some<T>(blocks * 2 * KV * bs * D);
  auto sinks = some<float>(H);
  K::attention(out.data(), q.data(), cache.data(), table.data(), most, starts.data(), lens.data(),
               upto(0, 1) ? sinks.data() : nullptr, B, H, KV, D, bs, upto(0, 1) * upto(1, 90), 0.1f,
               upto(0, 1) ? 20.0f : 0.0f);

  const int64_t tokens = upto(0, 30), rotary = D / 2 * 2 * upto(0, 1), norm = upto(0, 2);
  auto qkv = some<T>(tokens * (H + 2 * KV) * D), to = some<T>(tokens * H * D);
  std::vector<int64_t> positions, slots;
  for (int64_t t = 0; t < tokens; t++) {
    positions.push_back(upto(0, 49));
    slots.push_back(upto(0, blocks * bs - 1));
  }
  const int64_t apart = norm == 2 ? D : 0;
  auto angles = some<float>(50 * rotary);
  auto wq = some<T>(apart * (H - 1) + D), wk = some<T>(apart * (KV - 1) + D);
  K::attention_input(to.data(), qkv.data(), positions.data(), rotary ? angles.data() : nullptr,
                     cache.data(), slots.data(), norm ? wq.data() : nullptr,
                     norm ? wk.data() : nullptr, tokens, H, KV, D, bs, rotary, int(upto(0, 1)),
                     int(norm), 1e-6f, 0.5f);
}

template <class K>
void elementwise() {
  typedef typename K::T T;
  const int64_t M = upto(0, 40), C = upto(1, 1500);
  auto x = some<T>(M * C), y = some<T>(M * C), s = some<T>(M * C), r = some<T>(M * C), w = some<T>(C);
  K::rms_norm(y.data(), s.data(), x.data(), upto(0, 1) ? r.data() : nullptr, w.data(), M, C, 1e-6f,
              1.0f, int(upto(0, 1)));
  K::gated_activation(y.data(), some<T>(M * 2 * C).data(), M, C, int(upto(0, 3)));
}

void samplings() {
  const int64_t rows = upto(0, 6), V = upto(0, 1) ? upto(1, 50) : upto(1, 5000);
  auto logits = some<float>(rows * V);
  std::vector<float> temperature, p, m, u;
  std::vector<int32_t> k;
  std::vector<int64_t> out(rows);
  for (int64_t r = 0; r < rows; r++) {
    temperature.push_back(float(upto(0, 3)) * 0.4f);
    p.push_back(float(upto(1, 10)) * 0.1f);
    m.push_back(float(upto(0, 10)) * 0.1f);
    u.push_back(float(upto(0, 999)) * 0.001f);
    k.push_back(int32_t(upto(0, V + 3)));
  }
  am_sampling_f32(out.data(), logits.data(), temperature.data(), upto(0, 1) ? k.data() : nullptr,
                  upto(0, 1) ? p.data() : nullptr, upto(0, 1) ? m.data() : nullptr, u.data(), rows, V);
  for (int64_t token : out) {
    if (token < 0 || token >= V) std::abort();
  }
}

template <class T>
uint64_t word(T* x) { return reinterpret_cast<uint64_t>(x); }
uint64_t word(int64_t x) { return uint64_t(x); }
uint64_t word(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

template <class... A>
void add(Program* program, const char* name, A... arguments) {
  const uint64_t words[] = {word(arguments)...};
  if (!am_program_add(program, name, words, sizeof...(A))) std::abort();
}

// A step of a model that has no layers: state to tokens to rows to numbers to state.
void programs() {
  const int64_t B = upto(1, 9), G = upto(1, 3), S = 10, L = upto(2, 70), block = upto(1, 20);
  const int64_t P = (L - 1 + block - 1) / block, V = 50, C = upto(1, 90), n = B * C;
  std::vector<int64_t> words, ids(B), positions(B), slots(G * B), chosen(B), out(B);
  std::vector<int32_t> tokens(S * L), tables(G * S * P), lens(B), found(G * B * P);
  for (int32_t& token : tokens) token = int32_t(upto(0, V - 1));
  for (int64_t b = 0; b < B; b++) words.push_back(upto(0, S - 1));
  for (int64_t b = 0; b < B; b++) words.push_back(upto(1, L - 1));
  for (int64_t i = 0; i < G * B; i++) words.push_back(upto(0, 3));
  const bool checked = upto(0, 1);
  for (int64_t& token : chosen) token = upto(-2, checked ? V + 1 : V - 1);
  auto table = some<float>(V * C), rows = some<float>(n), sum = some<float>(n), again = some<float>(n);
  auto wide = some<float>(2 * n), logits = some<float>(B * V);
  auto half = some<uint16_t>(n), other = some<uint16_t>(n);
  Program* program = am_program_new();
  add(program, "read_state", words.data(), tokens.data(), tables.data(), ids.data(),
      positions.data(), lens.data(), found.data(), slots.data(), B, G, S, L, P, block);
  add(program, "gather_rows", rows.data(), table.data(), ids.data(), B, C * 4);
  add(program, "scale_f32", sum.data(), rows.data(), 2.0f, n);
  add(program, "add_f32", sum.data(), sum.data(), rows.data(), n);
  add(program, "copy_rows", wide.data() + C, sum.data(), B, C * 4, 2 * C * 4, C * 4);
  add(program, "narrow_bf16", half.data(), rows.data(), n);
  add(program, "scale_bf16", other.data(), half.data(), 0.5f, n);
  add(program, "add_bf16", half.data(), half.data(), other.data(), n);
  add(program, "widen_bf16", again.data(), half.data(), n);
  add(program, "write_state", words.data(), tokens.data(), chosen.data(),
      checked ? logits.data() : nullptr, out.data(), B, L, V);
  const uint64_t none = 0;
  if (am_program_add(program, "scale_f32", &none, 1) || am_program_add(program, "none", &none, 1))
    std::abort();
  for (int i = 0; i < 3; i++) am_program_run(program);
  am_program_delete(program);
  for (int64_t i = 0; i < n; i++) {
    if (wide[i / C * 2 * C + C + i % C] != rows[i] * 3.0f) std::abort();
    if (std::abs(again[i] - rows[i] * 1.5f) > std::abs(rows[i]) * 0.03f) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  const char* seen = "";
  for (const char* isa : {"avx512_bf16", "avx512", "avx2", "portable"}) {
    am_limit_isa(isa);
    if (am_isa() == seen) continue;
    seen = am_isa();
    std::printf("%s\n", seen), std::fflush(stdout);
    for (int i = 0; i < rounds; i++) {
      am_set_threads(int(upto(1, 3)));
      linears<Bf16>(), linears<F32>();
      attentions<Bf16>(), attentions<F32>();
      elementwise<Bf16>(), elementwise<F32>();
      tables<Bf16>(), tables<F32>();
      experts<Bf16>(), experts<F32>();
      panels();
      samplings();
      programs();
    }
  }
}
