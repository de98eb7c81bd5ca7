// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// RMSNorm beside a plain copy and a non-temporal copy of the same bytes: one process, one thread,
// thread CPU time, the three taken in turn in every round; a ratio is the median over the rounds.
//
//   membound_bench_cpu [--rounds N] [--json FILE] [--only SUBSTRING]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "membound/membound.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace membound;

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void copy_512(char* to, const char* from, std::size_t bytes,
                                                 bool around_cache) {
  if (around_cache) {
    for (std::size_t i = 0; i < bytes; i += 128) {
      const __m512i a = _mm512_loadu_si512(from + i);
      const __m512i b = _mm512_loadu_si512(from + i + 64);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    }
    _mm_sfence();
    return;
  }
  for (std::size_t i = 0; i < bytes; i += 128) {
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + 64);
    _mm512_storeu_si512(to + i, a);
    _mm512_storeu_si512(to + i + 64, b);
  }
}
__attribute__((target("avx2"))) void copy_256(char* to, const char* from, std::size_t bytes,
                                              bool around_cache) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* target = reinterpret_cast<__m256i*>(to);
  if (around_cache) {
    for (std::size_t i = 0; i < bytes / 32; i += 4) {
      for (int k = 0; k < 4; ++k)
        _mm256_stream_si256(target + i + k, _mm256_loadu_si256(source + i + k));
    }
    _mm_sfence();
    return;
  }
  for (std::size_t i = 0; i < bytes / 32; i += 4) {
    for (int k = 0; k < 4; ++k)
      _mm256_storeu_si256(target + i + k, _mm256_loadu_si256(source + i + k));
  }
}
#endif

// bytes: a multiple of 128. The copy uses the widest vectors that the CPU has, whatever
// MEMBOUND_CPU_ISA says.
void copy(char* to, const char* from, std::size_t bytes, bool around_cache) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return copy_512(to, from, bytes, around_cache);
  if (__builtin_cpu_supports("avx2")) return copy_256(to, from, bytes, around_cache);
#endif
  std::memcpy(to, from, bytes);
}

struct Case {
  const char* label;
  std::int64_t rows, cols;
  DType dtype;
  double goal;     // must ratio on AVX-512, 0: none stated
  bool best_copy;  // against the better copy; else against the plain one
};

struct Outcome {
  double seconds, copy_seconds, stream_seconds;  // best per call
  double of_copy, of_best;                       // medians of the paired ratios
  double spread;                                 // p75 / p25 of the plain copy
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

template <class Body>
double per_call(int calls, Body&& body) {
  const double start = thread_seconds();
  for (int i = 0; i < calls; ++i) body();
  return (thread_seconds() - start) / calls;
}

void fill(char* data, std::size_t count, DType dtype) {
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f + 0.01f;
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype == DType::kFloat64) {
      reinterpret_cast<double*>(data)[i] = value;
    } else if (dtype == DType::kFloat32) {
      reinterpret_cast<float*>(data)[i] = value;
    } else if (dtype == DType::kBFloat16) {
      reinterpret_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(bits >> 16);
    } else {  // between 1 and 2: exponent bits of 1.0 and a random fraction
      reinterpret_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(0x3c00u | state >> 22);
    }
  }
}

Outcome measure(const Case& c, int rounds) {
  const std::size_t count = static_cast<std::size_t>(c.rows * c.cols);
  const std::size_t bytes = count * dtype_size(c.dtype);
  const Device cpu = Device::cpu();
  DeviceBuffer x(bytes, cpu), out(bytes, cpu), weight(c.cols * dtype_size(c.dtype), cpu);
  fill(x.as<char>(), count, c.dtype);
  fill(weight.as<char>(), c.cols, c.dtype);
  std::memset(out.data(), 0, bytes);
  const ConstTensorView x_view(x.data(), c.dtype, cpu, {c.rows, c.cols});
  const ConstTensorView weight_view(weight.data(), c.dtype, cpu, {c.cols});
  const TensorView out_view(out.data(), c.dtype, cpu, {c.rows, c.cols});

  // Samples of about 1 ms for small cases: reading the thread's clock is a system call.
  const int calls =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{32} << 20) / bytes, 1, 4000));
  std::vector<double> plain, around, ours, of_copy, of_best;
  for (int round = -1; round < rounds; ++round) {
    const double a = per_call(calls, [&] { copy(out.as<char>(), x.as<char>(), bytes, false); });
    const double b = per_call(calls, [&] { copy(out.as<char>(), x.as<char>(), bytes, true); });
    const double t = per_call(calls, [&] {
      rms_norm(x_view, &weight_view, {}, out_view, nullptr, StreamView::legacy_default());
    });
    if (round < 0) continue;  // warms up
    plain.push_back(a);
    around.push_back(b);
    ours.push_back(t);
    of_copy.push_back(a / t);
    of_best.push_back(std::min(a, b) / t);
  }
  return {quantile(ours, 0),      quantile(plain, 0),
          quantile(around, 0),    quantile(of_copy, 0.5),
          quantile(of_best, 0.5), quantile(plain, 0.75) / quantile(plain, 0.25)};
}

// Goals: TARGETS.md, classes of research on the CPU. AVX2 is asked for 0.75 of them.
const Case kCases[] = {
    {"tiny", 1, 4096, DType::kFloat32, 0, false},
    {"tiny", 1, 4096, DType::kBFloat16, 0, false},
    {"tiny", 8, 4096, DType::kFloat32, 0, false},
    {"tiny", 8, 4096, DType::kBFloat16, 0, false},
    {"cached", 64, 4096, DType::kFloat32, 0.65, false},
    {"cached", 128, 4096, DType::kFloat32, 0.65, false},
    {"cached", 256, 4096, DType::kFloat32, 0.65, false},
    {"cached", 64, 4096, DType::kBFloat16, 0.60, false},
    {"cached", 128, 4096, DType::kBFloat16, 0.60, false},
    {"cached", 256, 4096, DType::kBFloat16, 0.60, false},
    {"cached", 64, 4096, DType::kFloat16, 0.50, false},
    {"cached", 256, 4096, DType::kFloat16, 0.50, false},
    {"cached", 128, 4096, DType::kFloat64, 0.65, false},
    {"DRAM", 2048, 4096, DType::kFloat32, 0.85, true},
    {"DRAM", 8192, 4096, DType::kFloat32, 0.85, true},
    {"DRAM", 4096, 8192, DType::kFloat32, 0.85, true},
    {"DRAM", 256, 131072, DType::kFloat32, 0.85, true},
    {"DRAM", 2048, 4096, DType::kBFloat16, 0.75, true},
    {"DRAM", 8192, 4096, DType::kBFloat16, 0.75, true},
    {"DRAM", 4096, 8192, DType::kBFloat16, 0.75, true},
    {"DRAM", 8192, 4096, DType::kFloat16, 0.70, true},
    {"DRAM", 4096, 4096, DType::kFloat64, 0.85, true},
    {"heads", 65536, 128, DType::kFloat32, 0.85, true},
    {"heads", 65536, 128, DType::kBFloat16, 0.70, true},
    {"heads", 65536, 128, DType::kFloat16, 0.70, true},
    {"heads", 4096, 128, DType::kBFloat16, 0, false},
};

}  // namespace

int main(int argc, char** argv) {
  int rounds = 21;
  const char* json_path = nullptr;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--rounds") rounds = std::max(1, std::atoi(argv[i + 1]));
    if (option == "--json") json_path = argv[i + 1];
    if (option == "--only") only = argv[i + 1];
  }
  set_cpu_threads(1);
  std::printf(
      "cpu_isa %s, 1 thread, thread CPU time, %d rounds, ratio = median of paired ratios\n\n",
      cpu_isa(), rounds);
  std::printf(
      "| class | rows x cols | dtype | copy GB/s | NT copy GB/s | rms_norm GB/s | us | of copy | "
      "of best copy | goal | copy p75/p25 |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  const double share = std::strcmp(cpu_isa(), "avx2") == 0 ? 0.75 : 1.0;
  for (const Case& c : kCases) {
    const std::string name = std::string(c.label) + " " + std::to_string(c.rows) + "x" +
                             std::to_string(c.cols) + " " + dtype_name(c.dtype);
    if (name.find(only) == std::string::npos) continue;
    const Outcome o = measure(c, rounds);
    const double gigabytes =
        2e-9 * static_cast<double>(c.rows * c.cols) * static_cast<double>(dtype_size(c.dtype));
    const double reached = c.best_copy ? o.of_best : o.of_copy;
    char goal[32] = "";
    if (c.goal > 0) {
      std::snprintf(goal, sizeof goal, "%.2f %s", c.goal * share,
                    reached >= c.goal * share ? "met" : "MISSED");
    }
    std::printf("| %s | %lld x %lld | %s | %.1f | %.1f | %.1f | %.3f | %.2f | %.2f | %s | %.2f |\n",
                c.label, static_cast<long long>(c.rows), static_cast<long long>(c.cols),
                dtype_name(c.dtype), gigabytes / o.copy_seconds, gigabytes / o.stream_seconds,
                gigabytes / o.seconds, 1e6 * o.seconds, o.of_copy, o.of_best, goal, o.spread);
    std::fflush(stdout);
    char line[512];
    std::snprintf(
        line, sizeof line,
        "%s  {\"class\": \"%s\", \"rows\": %lld, \"cols\": %lld, \"dtype\": \"%s\", \"isa\": "
        "\"%s\", "
        "\"seconds\": %.4g, \"copy_seconds\": %.4g, \"stream_copy_seconds\": %.4g, "
        "\"of_copy\": %.4f, \"of_best_copy\": %.4f, \"goal\": %.4f, \"copy_spread\": %.4f}",
        json.empty() ? "" : ",\n", c.label, static_cast<long long>(c.rows),
        static_cast<long long>(c.cols), dtype_name(c.dtype), cpu_isa(), o.seconds, o.copy_seconds,
        o.stream_seconds, o.of_copy, o.of_best, c.goal * share, o.spread);
    json += line;
  }
  if (json_path != nullptr) {
    std::FILE* file = std::fopen(json_path, "w");
    if (file == nullptr) {
      std::fprintf(stderr, "cannot write %s\n", json_path);
      return 1;
    }
    std::fprintf(file, "[\n%s\n]\n", json.c_str());
    std::fclose(file);
  }
  return 0;
}
