// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Functions of arrays on a GPU one after the other: in a CUDA graph, in every run the same.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "membound/array/adamw.hpp"
#include "membound/array/copy.hpp"
#include "membound/array/elementwise.hpp"
#include "membound/array/linear_algebra.hpp"
#include "membound/array/random.hpp"
#include "membound/array/reduction.hpp"
#include "membound/array/sorting.hpp"
#include "membound/array/stencil.hpp"
#include "membound/device.hpp"

#if MEMBOUND_WITH_CUDA
#include <cuda_runtime_api.h>

namespace membound_test {

using namespace membound;

namespace {

using Dims = NDArray::Dims;
const Device kGpu = Device::cuda(0);

bool no_gpu() {
  if (cuda_status().device_count > 0) return false;
  MESSAGE("skipped: " << cuda_status().message);
  return true;
}

NDArray reals(std::uint64_t seed, Dims shape, DType dtype, Device device) {
  return array::random_normal({seed, 0}, std::move(shape), dtype, device);
}

bool same_bits(const NDArray& a, const NDArray& b) {
  const NDArray x = a.to(Device::cpu()).contiguous(), y = b.to(Device::cpu()).contiguous();
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.bytes())) == 0;
}

// Everything that needs no number on the host, with all memory between the first and the last
// allocated and freed on the way.
void compute(const NDArray& x, NDArray& result) {
  using namespace array;
  const NDArray y = elementwise(ElementwiseOp::kExp, {x.matrix_transpose()});
  const NDArray product = matmul(y, x);
  const NDArray sums = sum(product, {Dims{0}});
  const NDArray sorted = sort(sums, 0, true);
  const NDArray weights = NDArray::full({3}, 0.5, x.dtype(), x.device());
  const NDArray smooth = stencil_1d(sorted, weights, {0, Boundary::kReflect});
  const NDArray scanned = cumulative_sum(smooth, 0);
  const NDArray noise = random_uniform({7, 0}, scanned.shape(), x.dtype(), x.device());
  const NDArray total = elementwise(ElementwiseOp::kAdd, {scanned, noise});
  NDArray param = total.copy();
  const NDArray mean = NDArray::zeros(total.shape(), x.dtype(), x.device());
  adamw({{param, total, mean, mean.copy()}}, {0.1});
  copy_into(result, param);
}

}  // namespace

TEST_CASE("a CUDA graph holds a chain of array functions, and its memory") {
  if (no_gpu()) return;
  const auto stream = static_cast<cudaStream_t>(array_stream(kGpu).handle());
  NDArray x = reals(1, {200, 300}, DType::kFloat32, kGpu);
  NDArray eager = NDArray::zeros({300}, DType::kFloat32, kGpu);
  NDArray replayed = NDArray::zeros({300}, DType::kFloat32, kGpu);
  compute(x, eager);  // loads the kernels and the matrix products' library
  array_stream(kGpu).synchronize();
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  compute(x, replayed);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (const std::uint64_t seed : {1, 2, 3}) {
    array::copy_into(x, reals(seed, {200, 300}, DType::kFloat32, kGpu));
    compute(x, eager);
    REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
    CHECK(same_bits(eager, replayed));
  }
  CHECK(cudaGraphExecDestroy(executable) == cudaSuccess);
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("reductions and sorts have the same bits in every run") {
  if (no_gpu()) return;
  const NDArray x = reals(5, {1000, 1001}, DType::kFloat32, kGpu);
  const auto all = [&] {
    return std::vector<NDArray>{array::sum(x),
                                array::sum(x, {Dims{0}}),
                                array::sum(x, {Dims{1}}),
                                array::cumulative_sum(x, 0),
                                array::sort(x, 1, false),
                                array::matmul(x.matrix_transpose(), x)};
  };
  const std::vector<NDArray> first = all();
  for (int run = 0; run < 3; ++run) {
    const std::vector<NDArray> again = all();
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], again[i]));
  }
}

TEST_CASE("what waits to be read is not written by a later array") {
  if (no_gpu()) return;
  // Each temporary is freed while the function that reads it is queued, and its memory used again.
  NDArray x = NDArray::zeros({1 << 20}, DType::kFloat32, kGpu);
  for (int i = 0; i < 200; ++i) {
    const NDArray one = NDArray::ones({1 << 20}, DType::kFloat32, kGpu);
    x = array::elementwise(ElementwiseOp::kAdd, {x, one});
  }
  const NDArray worst = array::max(x), least = array::min(x);
  CHECK(worst.item().real == 200);
  CHECK(least.item().real == 200);
}

}  // namespace membound_test

#endif
