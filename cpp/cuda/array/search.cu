// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Where elements enter a sorted vector; limited by the latency of the reads of the last steps.
#include "cuda/array/sort_order.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"

namespace membound::cuda {

namespace {

inline constexpr int kSearchThreads = 256;

struct SearchParams {
  const char* sorted;
  const char* wanted;
  std::int64_t* places;
  std::int64_t length, count;
  DType dtype;
  int item_bytes;
  bool right;
};

__global__ void __launch_bounds__(kSearchThreads)
    array_search_kernel(const __grid_constant__ SearchParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSearchThreads + threadIdx.x;
  if (i >= p.count) return;
  const auto key = [&](const char* from, std::int64_t at) {
    return ordered_bits(load_bits(from + at * p.item_bytes, p.item_bytes), p.dtype, p.item_bytes,
                        false);
  };
  const std::uint64_t wanted = key(p.wanted, i);
  std::int64_t first = 0, last = p.length;
  while (first < last) {
    const std::int64_t middle = first + (last - first) / 2;
    const std::uint64_t element = key(p.sorted, middle);
    const bool goes_behind = element < wanted || (p.right && element == wanted);
    (goes_behind ? first : last) = middle + (goes_behind ? 1 : 0);
  }
  p.places[i] = first;
}

}  // namespace

void array_search(const ArraySearch& problem, StreamView stream) {
  const SearchParams p{static_cast<const char*>(problem.sorted),
                       static_cast<const char*>(problem.wanted),
                       problem.places,
                       problem.length,
                       problem.count,
                       problem.dtype,
                       static_cast<int>(dtype_size(problem.dtype)),
                       problem.right};
  const LaunchShape shape = {(p.count + kSearchThreads - 1) / kSearchThreads, kSearchThreads};
  launch<array_search_kernel>(shape, stream, current_device(), p);
}

}  // namespace membound::cuda
