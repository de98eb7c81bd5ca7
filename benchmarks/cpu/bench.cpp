// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
//
// Times each op against plain and non-temporal copies (or triads) of the same bytes, in one
// process, by thread CPU time. Each round measures all of them; a ratio is the median over the
// rounds.
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

#include "cases.hpp"
#include "membound/membound.hpp"
#include "reference.hpp"

namespace membound_bench {
namespace {

using namespace membound;

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

template <class Body>
double per_call(int calls, Body&& body) {
  body();  // non-temporal stores of the one before have left results of up to half of it
           // outside
  const double start = thread_seconds();
  for (int i = 0; i < calls; ++i) body();
  return (thread_seconds() - start) / calls;
}

void fill(char* data, std::size_t count, DType dtype, std::uint32_t state) {
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
    } else {  // in [1, 2): the exponent of 1.0 and a random fraction
      reinterpret_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(0x3c00u | state >> 22);
    }
  }
}

void fill_with(double value, DeviceBuffer& numbers, std::int64_t count, DType dtype) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat64) {
      numbers.as<double>()[i] = value;
    } else {
      numbers.as<float>()[i] = static_cast<float>(value);
    }
  }
}

// For rope, whose rows are tokens.
constexpr std::int64_t kHeadDim = 128, kPairs = kHeadDim / 2;

// The arrays of a case, filled and paged in. a, b and e are read; c and d are written.
struct Arrays {
  explicit Arrays(const Case& c)
      : count(static_cast<std::size_t>(c.rows * c.cols)),
        bytes(count * dtype_size(c.dtype)),
        a(c, bytes, 1),
        b(c, bytes, 2),
        c(c, bytes, 3),
        d(c, bytes, 4),
        e(c, bytes, 9),
        weight(c.cols * dtype_size(c.dtype), Device::cpu()),
        bias(c.cols * dtype_size(c.dtype), Device::cpu()),
        dweight(c.cols * dtype_size(c.dtype), Device::cpu()),
        dbias(c.cols * dtype_size(c.dtype), Device::cpu()),
        mean(c.rows * dtype_size(accumulate_dtype(c.dtype)), Device::cpu()),
        rstd(c.rows * dtype_size(accumulate_dtype(c.dtype)), Device::cpu()),
        cos(c.rows * kPairs * dtype_size(accumulate_dtype(c.dtype)), Device::cpu()),
        sin(c.rows * kPairs * dtype_size(accumulate_dtype(c.dtype)), Device::cpu()) {
    fill_with(0.6, cos, c.rows * kPairs, accumulate_dtype(c.dtype));
    fill_with(0.8, sin, c.rows * kPairs, accumulate_dtype(c.dtype));
    fill(weight.as<char>(), c.cols, c.dtype, 5);
    fill(bias.as<char>(), c.cols, c.dtype, 7);
    fill(mean.as<char>(), c.rows, accumulate_dtype(c.dtype), 8);
    fill(rstd.as<char>(), c.rows, accumulate_dtype(c.dtype), 6);
  }
  struct Matrix : DeviceBuffer {
    Matrix(const Case& c, std::size_t bytes, std::uint32_t seed)
        : DeviceBuffer(bytes, Device::cpu()),
          view(data(), c.dtype, Device::cpu(), {c.rows, c.cols}) {
      fill(as<char>(), bytes / dtype_size(c.dtype), c.dtype, seed);
    }
    TensorView view;
  };
  std::size_t count, bytes;
  Matrix a, b, c, d, e;
  DeviceBuffer weight, bias, dweight, dbias, mean, rstd;
  DeviceBuffer cos, sin;  // for rope, one per row
};

void run_rope(const Case& c, const Arrays& on) {
  const DType wide = accumulate_dtype(c.dtype);
  const ConstTensorView cos(on.cos.data(), wide, Device::cpu(), {c.rows, kPairs});
  const ConstTensorView sin(on.sin.data(), wide, Device::cpu(), {c.rows, kPairs});
  const ConstTensorView freqs(on.cos.data(), wide, Device::cpu(), {kPairs});
  RopeAngles angles;
  if (c.op == Op::kRopeFreqs) {
    angles.freqs = &freqs;
  } else {
    angles.cos = &cos;
    angles.sin = &sin;
  }
  RopeOptions options;
  options.interleaved = c.op == Op::kRopeInterleaved;
  const auto heads = [&](const Arrays::Matrix& matrix) {
    return TensorView(matrix.view.data, c.dtype, Device::cpu(),
                      {1, c.rows, c.cols / kHeadDim, kHeadDim});
  };
  rope(heads(c.op == Op::kRopeInPlace ? on.c : on.a), nullptr, angles, options, heads(on.c),
       nullptr, StreamView::legacy_default());
}

void run_op(const Case& c, const Arrays& on) {
  const Device cpu = Device::cpu();
  const StreamView stream = StreamView::legacy_default();
  const ConstTensorView weight(on.weight.data(), c.dtype, cpu, {c.cols});
  const ConstTensorView bias(on.bias.data(), c.dtype, cpu, {c.cols});
  const ConstTensorView dsum = on.d.view;
  const TensorView dweight(on.dweight.data(), c.dtype, cpu, {c.cols});
  const TensorView dbias(on.dbias.data(), c.dtype, cpu, {c.cols});
  const ConstTensorView mean(on.mean.data(), accumulate_dtype(c.dtype), cpu, {c.rows});
  const ConstTensorView rstd(on.rstd.data(), accumulate_dtype(c.dtype), cpu, {c.rows});
  switch (c.op) {
    case Op::kRmsNorm: return rms_norm(on.a.view, &weight, {}, on.c.view, nullptr, stream);
    case Op::kAddRmsNorm:
      return add_rms_norm(on.a.view, on.b.view, &weight, {}, on.c.view, on.d.view, nullptr, stream);
    case Op::kAddRmsNormInPlace:
      return add_rms_norm(on.c.view, on.d.view, &weight, {}, on.c.view, on.d.view, nullptr, stream);
    case Op::kBackward:
      return rms_norm_backward(on.a.view, on.b.view, &weight, rstd, {}, &on.c.view, &dweight,
                               nullptr, stream);
    case Op::kBackwardDx:
      return rms_norm_backward(on.a.view, on.b.view, &weight, rstd, {}, &on.c.view, nullptr,
                               nullptr, stream);
    case Op::kAddBackward:
      return add_rms_norm_backward(on.a.view, &dsum, on.b.view, &weight, rstd, {}, &on.c.view,
                                   nullptr, &dweight, nullptr, stream);
    case Op::kLayerNorm:
      return layer_norm(on.a.view, &weight, &bias, {}, on.c.view, nullptr, nullptr, stream);
    case Op::kAddLayerNorm:
      return add_layer_norm(on.a.view, on.b.view, &weight, &bias, {}, on.c.view, on.d.view, nullptr,
                            nullptr, stream);
    case Op::kLayerBackward:
      return layer_norm_backward(on.a.view, on.b.view, &weight, mean, rstd, {}, &on.c.view,
                                 &dweight, &dbias, nullptr, stream);
    case Op::kLayerBackwardDx:
      return layer_norm_backward(on.a.view, on.b.view, &weight, mean, rstd, {}, &on.c.view, nullptr,
                                 nullptr, nullptr, stream);
    case Op::kAddLayerBackward:
      return add_layer_norm_backward(on.a.view, &dsum, on.b.view, &weight, mean, rstd, {},
                                     &on.c.view, nullptr, &dweight, &dbias, nullptr, stream);
    case Op::kGated:
    case Op::kGateFirst:
      return rms_norm_gated(on.a.view, on.b.view, &weight, {.norm_before_gate = c.op == Op::kGated},
                            on.c.view, nullptr, stream);
    case Op::kGatedBackward:
    case Op::kGateFirstBackward:
      return rms_norm_gated_backward(on.a.view, on.b.view, on.e.view, &weight, rstd,
                                     {.norm_before_gate = c.op == Op::kGatedBackward}, &on.c.view,
                                     &on.d.view, &dweight, nullptr, stream);
    case Op::kRope:
    case Op::kRopeInterleaved:
    case Op::kRopeInPlace:
    case Op::kRopeFreqs: return run_rope(c, on);
    case Op::kSiluAndMul: return silu_and_mul(on.a.view, on.b.view, on.c.view, stream);
    case Op::kSoftmax: return softmax(on.a.view, nullptr, {}, on.c.view, stream);
  }
}

// The same bytes, without arrays that have only rows or only columns.
void run_reference(const Case& c, const Arrays& on, bool non_temporal) {
  switch (c.op) {
    case Op::kRmsNorm:
    case Op::kLayerNorm:
    case Op::kRope:
    case Op::kRopeInterleaved:
    case Op::kRopeInPlace:
    case Op::kRopeFreqs:
    case Op::kSoftmax: return copy(on.c.data(), on.a.data(), on.bytes, non_temporal);
    case Op::kBackward:
    case Op::kBackwardDx:
    case Op::kLayerBackward:
    case Op::kLayerBackwardDx:
    case Op::kGated:
    case Op::kGateFirst:
    case Op::kSiluAndMul:
      return triad(on.c.data(), on.a.data(), on.b.data(), on.bytes, non_temporal);
    case Op::kGatedBackward:
    case Op::kGateFirstBackward:
      triad(on.c.data(), on.a.data(), on.b.data(), on.bytes, non_temporal);
      return copy(on.d.data(), on.e.data(), on.bytes, non_temporal);
    default:
      copy(on.c.data(), on.a.data(), on.bytes, non_temporal);
      return copy(on.d.data(), on.b.data(), on.bytes, non_temporal);
  }
}

struct Outcome {
  double seconds, plain_seconds, around_seconds;  // best time per call
  double of_plain, of_best;                       // medians of the paired ratios
  double spread;                                  // p75 / p25 of the plain reference
};

Outcome measure(const Case& c, int rounds) {
  const Arrays on(c);
  // Small cases repeat to samples of about 1 ms, because reading the thread's clock is a system
  // call.
  const int calls =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{32} << 20) / on.bytes, 1, 4000));
  std::vector<double> plain, around, ours, of_plain, of_best;
  for (int round = -1; round < rounds; ++round) {
    const double a = per_call(calls, [&] { run_reference(c, on, false); });
    const double b = per_call(calls, [&] { run_reference(c, on, true); });
    const double t = per_call(calls, [&] { run_op(c, on); });
    if (round < 0) continue;  // warm-up
    plain.push_back(a);
    around.push_back(b);
    ours.push_back(t);
    of_plain.push_back(a / t);
    of_best.push_back(std::min(a, b) / t);
  }
  return {quantile(ours, 0),      quantile(plain, 0),
          quantile(around, 0),    quantile(of_plain, 0.5),
          quantile(of_best, 0.5), quantile(plain, 0.75) / quantile(plain, 0.25)};
}

std::string json_line(const Case& c, const Outcome& o, double goal) {
  char line[512];
  std::snprintf(line, sizeof line,
                "  {\"op\": \"%s\", \"class\": \"%s\", \"rows\": %lld, \"cols\": %lld, \"dtype\": "
                "\"%s\", \"isa\": \"%s\", \"seconds\": %.4g, \"plain_seconds\": %.4g, "
                "\"non_temporal_seconds\": %.4g, \"of_plain\": %.4f, \"of_best\": %.4f, \"goal\": "
                "%.4f, \"spread\": %.4f}",
                op_name(c.op), c.label, static_cast<long long>(c.rows),
                static_cast<long long>(c.cols), dtype_name(c.dtype), cpu_isa(), o.seconds,
                o.plain_seconds, o.around_seconds, o.of_plain, o.of_best, goal, o.spread);
  return line;
}

void print_row(const Case& c, const Outcome& o, double wanted) {
  const double gigabytes = 1e-9 * matrices_of(c.op) * static_cast<double>(c.rows * c.cols) *
                           static_cast<double>(dtype_size(c.dtype));
  const double reached = c.best_reference ? o.of_best : o.of_plain;
  char goal[32] = "";
  if (wanted > 0)
    std::snprintf(goal, sizeof goal, "%.2f %s", wanted, reached >= wanted ? "met" : "MISSED");
  std::printf(
      "| %s | %s | %lld x %lld | %s | %.1f | %.1f | %.1f | %.3f | %.2f | %.2f | %s | %.2f |\n",
      op_name(c.op), c.label, static_cast<long long>(c.rows), static_cast<long long>(c.cols),
      dtype_name(c.dtype), gigabytes / o.plain_seconds, gigabytes / o.around_seconds,
      gigabytes / o.seconds, 1e6 * o.seconds, o.of_plain, o.of_best, goal, o.spread);
  std::fflush(stdout);
}

int run(int rounds, const std::string& only, const char* json_path) {
  set_cpu_threads(1);
  std::printf(
      "cpu_isa %s, 1 thread, thread CPU time, %d rounds, ratio = median of paired ratios\n\n",
      cpu_isa(), rounds);
  std::printf(
      "| op | class | rows x cols | dtype | plain GB/s | NT GB/s | op GB/s | us | of plain | of "
      "best | goal | plain p75/p25 |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::string json;
  const double share = std::strcmp(cpu_isa(), "avx2") == 0 ? 0.75 : 1.0;
  for (const Case& c : kCases) {
    const std::string name = std::string(op_name(c.op)) + " " + c.label + " " +
                             std::to_string(c.rows) + "x" + std::to_string(c.cols) + " " +
                             dtype_name(c.dtype);
    if (name.find(only) == std::string::npos) continue;
    const Outcome o = measure(c, rounds);
    print_row(c, o, c.goal * share);
    json += (json.empty() ? "" : ",\n") + json_line(c, o, c.goal * share);
  }
  if (json_path == nullptr) return 0;
  std::FILE* file = std::fopen(json_path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", json_path);
    return 1;
  }
  std::fprintf(file, "[\n%s\n]\n", json.c_str());
  return std::fclose(file);
}

}  // namespace
}  // namespace membound_bench

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
  return membound_bench::run(rounds, only, json_path);
}
