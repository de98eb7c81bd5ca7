// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Device::cpu() replaces the GPU; chunks, slots, copies and threads are the same.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "membound/device.hpp"
#include "membound/error.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/staging.hpp"

namespace membound {

namespace {

// Sets options for a scope; small slots give many chunks for little data.
class Options {
 public:
  explicit Options(std::size_t slot_bytes, int threads = 3, int slots = 2) {
    StagingOptions options;
    options.slot_bytes = slot_bytes;
    options.threads = threads;
    options.slots_per_thread = slots;
    set_staging_options(options);
    set_cpu_threads(threads);  // also on a machine with fewer cores
  }
  ~Options() {
    set_staging_options(StagingOptions());
    set_cpu_threads(0);
  }
};

using Floats = std::vector<float>;

Floats random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// rows x cols in memory with the given strides, which may be negative.
struct Matrix {
  Floats memory;
  TensorView view;

  Matrix(std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride,
         unsigned seed)
      : view(nullptr, DType::kFloat32, Device::cpu(), {rows, cols}) {
    const std::int64_t last = rows * std::abs(row_stride) + cols * std::abs(col_stride);
    memory = random_floats(static_cast<std::size_t>(last + 1), seed);
    view.strides[0] = row_stride;
    view.strides[1] = col_stride;
    const std::int64_t low = (row_stride < 0 ? (rows - 1) * row_stride : 0) +
                             (col_stride < 0 ? (cols - 1) * col_stride : 0);
    view.data = memory.data() - low;
  }
};

// Compares all of the memory: results, and gaps, which must not be written.
bool same_bytes(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Shape {
  std::int64_t rows, cols;
};

void check_rms_norm(Shape shape, int layout, bool in_place, unsigned seed) {
  const auto [rows, cols] = shape;
  const std::int64_t row_strides[] = {cols, cols + 5, 1, 3, -cols, -2 * cols};
  const std::int64_t col_strides[] = {1, 1, rows, 3 * rows, -1, 2};
  const std::int64_t row_stride = row_strides[layout], col_stride = col_strides[layout];
  const Matrix x(rows, cols, row_stride, col_stride, seed);
  Matrix direct(rows, cols, row_stride, col_stride, in_place ? seed : seed + 1);
  Matrix staged(rows, cols, row_stride, col_stride, in_place ? seed : seed + 1);
  Floats weights = random_floats(static_cast<std::size_t>(2 * cols), seed + 2);
  ConstTensorView weight(weights.data(), DType::kFloat32, Device::cpu(), {cols});
  weight.strides[0] = 2;
  Floats direct_rstd(rows), staged_rstd(rows);
  const TensorView rstd_view(direct_rstd.data(), DType::kFloat32, Device::cpu(), {rows});
  const TensorView staged_rstd_view(staged_rstd.data(), DType::kFloat32, Device::cpu(), {rows});

  const RmsNormOptions options;
  rms_norm(in_place ? direct.view : x.view, &weight, options, direct.view, &rstd_view,
           StreamView::legacy_default());
  rms_norm(in_place ? staged.view : x.view, &weight, options, staged.view, &staged_rstd_view,
           Device::cpu());
  CHECK(same_bytes(direct.memory, staged.memory));
  CHECK(same_bytes(direct_rstd, staged_rstd));
}

}  // namespace

TEST_CASE("staged results have the bits of direct ones, for any layout and row length") {
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  const Options options(4096);
  // About one chunk, several chunks, and rows longer than a slot (in pieces, in several groups).
  const Shape shapes[] = {{1, 1},   {1, 64},   {3, 7},     {64, 16},  {1000, 33}, {257, 100},
                          {5, 896}, {9, 1024}, {40, 1025}, {1, 5000}, {3, 40000}, {200, 3000}};
  for (const Shape& shape : shapes) {
    for (int layout = 0; layout < 6; ++layout) {
      for (bool in_place : {false, true}) {
        CAPTURE(shape.rows);
        CAPTURE(shape.cols);
        CAPTURE(layout);
        CAPTURE(in_place);
        check_rms_norm(shape, layout, in_place, seed);
      }
    }
  }
}

TEST_CASE("threads, slots and chunk sizes do not matter") {
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  for (std::size_t slot_bytes : {4096, 10000, 1 << 20}) {
    for (int threads : {1, 2, 7}) {
      for (int slots : {1, 2, 5}) {
        const Options options(slot_bytes, threads, slots);
        check_rms_norm({500, 300}, 1, false, seed);
      }
    }
  }
}

TEST_CASE("several inputs and outputs of other widths, with trailing axes") {
  const Options options(4096);
  const unsigned seed = std::random_device()();
  CAPTURE(seed);
  const std::int64_t rows = 123;
  const Floats a = random_floats(rows * 3 * 4, seed), b = random_floats(rows, seed + 1);
  Floats sum(rows * 3 * 4), shifted(rows);
  StagedCall call{"test", Device::cpu(), {}, {}, {}};
  const auto view = [](const auto& values, std::initializer_list<std::int64_t> shape) {
    return ConstTensorView(values.data(), DType::kFloat32, Device::cpu(), shape);
  };
  const float shift = 2.0f;
  call.inputs = {{view(a, {41, 3, 3, 4}), "a", 2}, {view(b, {41, 3}), "b", 2}};
  call.outputs = {
      {TensorView(sum.data(), DType::kFloat32, Device::cpu(), {41, 3, 3, 4}), "sum", 2},
      {TensorView(shifted.data(), DType::kFloat32, Device::cpu(), {41, 3}), "shifted", 2}};
  call.constants = {{ConstTensorView(&shift, DType::kFloat32, Device::cpu(), {}), "shift", 0}};
  run_staged(call, [](const StagedChunk& chunk) {
    const ConstTensorView& left = chunk.inputs[0];
    REQUIRE(left.rank == 3);
    REQUIRE(left.shape[1] * left.shape[2] == 12);
    REQUIRE(chunk.inputs[1].rank == 1);
    REQUIRE(chunk.constants[0].rank == 0);
    REQUIRE(reinterpret_cast<std::uintptr_t>(chunk.outputs[1].data) % 16 == 0);
    for (std::int64_t i = 0; i < left.shape[0]; ++i) {
      const float right = static_cast<const float*>(chunk.inputs[1].data)[i];
      const float constant = *static_cast<const float*>(chunk.constants[0].data);
      static_cast<float*>(chunk.outputs[1].data)[i] = right + constant;
      for (std::int64_t j = 0; j < 12; ++j) {
        static_cast<float*>(chunk.outputs[0].data)[i * 12 + j] =
            static_cast<const float*>(left.data)[i * 12 + j] + right;
      }
    }
  });
  for (std::int64_t i = 0; i < rows; ++i) {
    CHECK(shifted[i] == b[i] + shift);
    for (std::int64_t j = 0; j < 12; ++j) CHECK(sum[i * 12 + j] == a[i * 12 + j] + b[i]);
  }
}

TEST_CASE("no rows, no work") {
  StagedCall call{"test", Device::cpu(), {}, {}, {}};
  call.inputs = {{ConstTensorView(nullptr, DType::kFloat32, Device::cpu(), {0, 8}), "x", 1}};
  call.outputs = {{TensorView(nullptr, DType::kFloat32, Device::cpu(), {0, 8}), "out", 1}};
  run_staged(call, [](const StagedChunk&) { FAIL("called"); });
}

TEST_CASE("the op's exception comes out and the next call is right") {
  const Options options(4096);
  Floats x(100000), out(100000);
  for (const std::int64_t cols : {10, 5000}) {  // chunks of rows, and rows in pieces
    StagedCall call{"test", Device::cpu(), {}, {}, {}};
    const std::int64_t rows = 100000 / cols;
    call.inputs = {
        {ConstTensorView(x.data(), DType::kFloat32, Device::cpu(), {rows, cols}), "x", 1}};
    call.outputs = {
        {TensorView(out.data(), DType::kFloat32, Device::cpu(), {rows, cols}), "out", 1}};
    std::atomic<int> calls{0};
    const auto fail_once = [&](const StagedChunk&) {
      if (++calls == 2) throw OutOfMemory("second chunk");
    };
    CHECK_THROWS_WITH_AS(run_staged(call, fail_once), "second chunk", OutOfMemory);
    CHECK(calls >= 2);
  }
  check_rms_norm({500, 300}, 0, false, 1);
}

TEST_CASE("several threads stage at once") {
  const Options options(4096, 2);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int j = 0; j < 10; ++j) check_rms_norm({300, 50 + i}, static_cast<int>(i), false, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("buffers are kept up to the limit and given back on demand") {
  StagingOptions options;
  options.slot_bytes = 4096;
  options.threads = 4;
  options.cached_bytes = 3 * 2 * 4096;  // three slots, each with a half per direction
  set_staging_options(options);
  CHECK(staging_options().slot_bytes == 4096);
  CHECK(cached_staging_bytes() == 0);
  check_rms_norm({1000, 100}, 0, false, 3);
  CHECK(cached_staging_bytes() > 0);
  CHECK(cached_staging_bytes() <= options.cached_bytes);
  release_staging();
  CHECK(cached_staging_bytes() == 0);
  check_rms_norm({1000, 100}, 0, false, 3);
  set_staging_options(StagingOptions());  // slots of another size cannot be reused
  CHECK(cached_staging_bytes() == 0);
}

TEST_CASE("bad options are refused") {
  StagingOptions options;
  options.slot_bytes = 4095;
  CHECK_THROWS_AS(set_staging_options(options), InvalidArgument);
  options = {};
  options.slots_per_thread = 0;
  CHECK_THROWS_AS(set_staging_options(options), InvalidArgument);
  options = {};
  options.threads = -1;
  CHECK_THROWS_AS(set_staging_options(options), InvalidArgument);
}

TEST_CASE("a GPU that is not there is named") {
  Floats x(8), out(8);
  const TensorView x_view(x.data(), DType::kFloat32, Device::cpu(), {1, 8});
  const TensorView out_view(out.data(), DType::kFloat32, Device::cpu(), {1, 8});
  if (cuda_status().device_count == 0) {
    CHECK_THROWS_AS(rms_norm(x_view, nullptr, {}, out_view, nullptr, Device::cuda()), CudaError);
  } else {
    CHECK_THROWS_AS(rms_norm(x_view, nullptr, {}, out_view, nullptr, Device::cuda(999)),
                    InvalidArgument);
  }
  TensorView on_gpu = x_view;
  on_gpu.device = Device::cuda();
  TensorView out_on_gpu = out_view;
  out_on_gpu.device = Device::cuda();
  CHECK_THROWS_AS(rms_norm(on_gpu, nullptr, {}, out_on_gpu, nullptr, Device::cuda()),
                  InvalidArgument);
}

}  // namespace membound
