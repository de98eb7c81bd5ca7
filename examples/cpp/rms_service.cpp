// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// A service that normalises rows for many threads at once: each request takes the pool's next
// stream, so that on a GPU the copies of one request overlap the work of others; on the CPU the
// same code runs without streams.
//
//   example_rms_service [--threads 4] [--requests 400] [--streams 4]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "membound/membound.hpp"

namespace {

constexpr std::int64_t kCols = 1024;
constexpr std::int64_t kMaxRows = 64;
constexpr double kTolerance = 1e-5;  // relative to the largest element; float32 stays far below

// Owns the weight and the streams; submit() may be called by any number of threads.
class RmsService {
 public:
  RmsService(const std::vector<float>& weight, membound::Device device, std::size_t streams)
      : device_(device), pool_(device, streams), weight_(bytes(1), device, pool_.at(0)) {
    membound::copy_bytes(weight_.data(), device_, weight.data(), host_, bytes(1), pool_.at(0));
    pool_.at(0).synchronize();  // the other streams read it
  }

  // rows x kCols floats of the host, normalised in place. Returns when they are there; other
  // threads' requests run meanwhile.
  void submit(std::vector<float>& rows) {
    const membound::StreamView stream = pool_.next();
    const auto count = static_cast<std::int64_t>(rows.size()) / kCols;
    const std::size_t size = bytes(count);
    const membound::DeviceBuffer buffer(size, device_, stream);
    membound::copy_bytes(buffer.data(), device_, rows.data(), host_, size, stream);
    const membound::TensorView x(buffer.data(), kDtype, device_, {count, kCols});
    const membound::ConstTensorView weight(weight_.data(), kDtype, device_, {kCols});
    membound::rms_norm(x, &weight, {}, x, /*rstd=*/nullptr, stream);
    membound::copy_bytes(rows.data(), host_, buffer.data(), device_, size, stream);
    stream.synchronize();
  }

 private:
  static constexpr auto kDtype = membound::DType::kFloat32;
  static std::size_t bytes(std::int64_t rows) { return rows * kCols * sizeof(float); }

  membound::Device device_;
  membound::Device host_ = membound::Device::cpu();
  membound::StreamPool pool_;  // before the buffer, which is freed on one of its streams
  membound::DeviceBuffer weight_;
};

// The largest error of a request, relative to 1: normalised rows have elements of about that size.
double largest_error(const std::vector<float>& x, const std::vector<float>& y,
                     const std::vector<float>& weight) {
  double worst = 0.0;
  for (std::size_t row = 0; row < x.size(); row += kCols) {
    double sum = 0.0;
    for (std::int64_t col = 0; col < kCols; ++col) sum += double(x[row + col]) * x[row + col];
    const double rstd = 1.0 / std::sqrt(sum / kCols + membound::RmsNormOptions{}.eps);
    for (std::int64_t col = 0; col < kCols; ++col) {
      const double error = std::abs(y[row + col] - x[row + col] * rstd * weight[col]);
      worst = error <= worst ? worst : error;  // takes NaN
    }
  }
  return worst;
}

struct Options {
  std::size_t threads = 4;
  std::size_t requests = 400;
  std::size_t streams = 4;
};

// What the client threads found.
struct Totals {
  std::atomic<std::size_t> done{0}, wrong{0}, rows{0};
};

// One client: requests of random numbers of rows until all clients together have made enough.
void run_client(RmsService& service, const std::vector<float>& weight, unsigned seed,
                std::size_t requests, Totals& totals) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::uniform_int_distribution<std::int64_t> row_count(1, kMaxRows);
  std::vector<float> pool(kMaxRows * kCols);
  for (float& value : pool) value = normal(random);
  for (std::size_t i = 0; i < requests; ++i) {
    const std::vector<float> x(pool.begin(), pool.begin() + row_count(random) * kCols);
    std::vector<float> y = x;
    bool right = false;
    try {
      service.submit(y);
      right = largest_error(x, y, weight) < kTolerance;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rms_service: %s\n", error.what());
    }
    if (!right) ++totals.wrong;
    totals.rows += x.size() / kCols;
    ++totals.done;
  }
}

// A bar on stderr until all requests are done.
void show_progress(const Totals& totals, std::size_t all) {
  for (std::size_t done = 0; done < all;) {
    done = totals.done;
    const int filled = static_cast<int>(30 * done / all);
    std::fprintf(stderr, "\r[%-30.*s] %zu of %zu", filled, "##############################", done,
                 all);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::fprintf(stderr, "\n");
}

std::size_t run(const Options& options) {
  const membound::Device device =
      membound::cuda_status().device_count > 0 ? membound::Device::cuda() : membound::Device::cpu();
  std::vector<float> weight(kCols);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.5f + 0.001f * (i % 1000);
  RmsService service(weight, device, options.streams);

  Totals totals;
  const std::size_t each = (options.requests + options.threads - 1) / options.threads;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < options.threads; ++i)
    clients.emplace_back([&, i] { run_client(service, weight, unsigned(i), each, totals); });
  show_progress(totals, each * options.threads);
  for (std::thread& client : clients) client.join();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;

  std::printf("rms_service: %zu requests of %zu threads over %zu streams on %s, %zu wrong\n",
              totals.done.load(), options.threads, options.streams,
              membound::device_name(device).c_str(), totals.wrong.load());
  std::printf("rms_service: %.0f requests/s, %.0f rows/s, each checked on the host\n",
              totals.done / taken.count(), totals.rows / taken.count());
  return totals.wrong;
}

constexpr const char* kUsage =
    "usage: example_rms_service [--threads N] [--requests N] [--streams N]\n";

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i];
    const long value = i + 1 < count ? std::strtol(arguments[i + 1], nullptr, 10) : 0;
    std::size_t* const target = name == "--threads"    ? &options.threads
                                : name == "--requests" ? &options.requests
                                : name == "--streams"  ? &options.streams
                                                       : nullptr;
    if (target == nullptr || value < 1) throw std::invalid_argument(kUsage);
    *target = static_cast<std::size_t>(value);
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "--help") == 0) {
    std::printf("%s", kUsage);
    return 0;
  }
  try {
    return run(parse(count, arguments)) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rms_service: %s\n", error.what());
    return 1;
  }
}
