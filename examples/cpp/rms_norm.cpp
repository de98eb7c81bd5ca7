// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// RMSNorm of a float32 matrix in RAII buffers, on a stream of the pool, on the GPU when there is
// one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "membound/membound.hpp"

namespace {

constexpr std::int64_t kRows = 512;
constexpr std::int64_t kCols = 4096;
constexpr double kTolerance = 1e-6;  // relative; float32 results agree within a few 1e-7

struct Host {
  std::vector<float> x = std::vector<float>(kRows * kCols);
  std::vector<float> weight = std::vector<float>(kCols);
  std::vector<float> out = std::vector<float>(kRows * kCols);
};

Host make_input() {
  Host host;
  for (std::size_t i = 0; i < host.x.size(); ++i)
    host.x[i] = std::sin(0.001f * (i % 65'536)) + 2.0f;
  for (std::size_t i = 0; i < host.weight.size(); ++i) host.weight[i] = 1.0f + 0.001f * (i % 100);
  return host;
}

// Queues copy in, norm, copy out, and waits once at the end.
void normalize(Host& host, membound::Device device, const membound::RmsNormOptions& options) {
  const membound::Device cpu = membound::Device::cpu();
  const std::size_t bytes = host.x.size() * sizeof(float);
  const std::size_t weight_bytes = host.weight.size() * sizeof(float);

  // The pool comes first: the buffers are freed on its stream, so it has to outlive them.
  membound::StreamPool pool(device);
  const membound::StreamView stream = pool.next();
  membound::DeviceBuffer x(bytes, device, stream);
  membound::DeviceBuffer weight(weight_bytes, device, stream);
  membound::DeviceBuffer out(bytes, device, stream);
  membound::copy_bytes(x.data(), device, host.x.data(), cpu, bytes, stream);
  membound::copy_bytes(weight.data(), device, host.weight.data(), cpu, weight_bytes, stream);

  const auto dtype = membound::DType::kFloat32;
  const membound::ConstTensorView x_view(x.data(), dtype, device, {kRows, kCols});
  const membound::ConstTensorView weight_view(weight.data(), dtype, device, {kCols});
  const membound::TensorView out_view(out.data(), dtype, device, {kRows, kCols});
  membound::rms_norm(x_view, &weight_view, options, out_view, /*rstd=*/nullptr, stream);

  membound::copy_bytes(host.out.data(), cpu, out.data(), device, bytes, stream);
  pool.synchronize();
}

double largest_relative_error(const Host& host, double eps) {
  double worst = 0.0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const float* x = host.x.data() + row * kCols;
    const float* out = host.out.data() + row * kCols;
    double sum = 0.0;
    for (std::int64_t col = 0; col < kCols; ++col) sum += double(x[col]) * x[col];
    const double rstd = 1.0 / std::sqrt(sum / kCols + eps);
    for (std::int64_t col = 0; col < kCols; ++col) {
      const double exact = x[col] * rstd * host.weight[col];
      worst = std::max(worst, std::abs(out[col] - exact) / std::abs(exact));
    }
  }
  return worst;
}

}  // namespace

int main() {
  try {
    const membound::Device device = membound::cuda_status().device_count > 0
                                        ? membound::Device::cuda()
                                        : membound::Device::cpu();
    const membound::RmsNormOptions options;
    Host host = make_input();
    normalize(host, device, options);
    const double error = largest_relative_error(host, options.eps);
    std::printf("rms_norm: %lld x %lld float32 on %s, largest relative error %.1e\n",
                static_cast<long long>(kRows), static_cast<long long>(kCols),
                membound::device_name(device).c_str(), error);
    return error < kTolerance ? 0 : 1;  // false for NaN too
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rms_norm: %s\n", error.what());
    return 1;
  }
}
