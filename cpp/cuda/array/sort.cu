// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Sorts by CUB's radix sort: of keys that order as the elements do, with the row in front.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "core/check.hpp"
#include "cuda/array/index.cuh"
#include "cuda/array/radix_sort.hpp"
#include "cuda/array/sort_order.cuh"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "membound/cuda_check.hpp"

namespace membound::cuda {

namespace {

inline constexpr int kSortThreads = 256;

LaunchShape shape_of(std::int64_t elements) {
  return {(elements + kSortThreads - 1) / kSortThreads, kSortThreads};
}

struct SortParams {
  const char* values;     // of the first row
  char* sorted;           // or null
  std::int64_t* indices;  // or null
  std::uint64_t* keys;
  std::uint32_t* places;
  std::int64_t count;
  Divider length;
  DType dtype;
  int item_bytes, row_bits_from;  // 0: the row is not in the key
  bool descending;
};

__global__ void __launch_bounds__(kSortThreads)
    sort_keys_kernel(const __grid_constant__ SortParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= p.count) return;
  std::uint64_t key = ordered_bits(load_bits(p.values + i * p.item_bytes, p.item_bytes), p.dtype,
                                   p.item_bytes, p.descending);
  if (p.row_bits_from > 0)
    key |= static_cast<std::uint64_t>(p.length.quotient(i)) << p.row_bits_from;
  p.keys[i] = key;
  p.places[i] = static_cast<std::uint32_t>(i);
}

// Elements of 8 bytes are sorted first, then, stably, their rows.
__global__ void __launch_bounds__(kSortThreads)
    sort_rows_kernel(const __grid_constant__ SortParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i < p.count) p.keys[i] = static_cast<std::uint64_t>(p.length.quotient(p.places[i]));
}

__global__ void __launch_bounds__(kSortThreads)
    sort_results_kernel(const __grid_constant__ SortParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x;
  if (i >= p.count) return;
  const std::int64_t place = p.places[i];
  if (p.indices != nullptr) {
    p.indices[i] = place - p.length.quotient(place) * p.length.extent;
  } else {
    store_bits(p.sorted + i * p.item_bytes, p.item_bytes,
               load_bits(p.values + place * p.item_bytes, p.item_bytes));
  }
}

void sort_batch(const ArraySort& problem, std::int64_t first, std::int64_t rows,
                StreamView stream) {
  const int device = current_device();
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  SortParams p = {};
  p.count = rows * problem.length;
  p.length = divider_of(problem.length);
  p.dtype = problem.dtype;
  p.item_bytes = static_cast<int>(size);
  p.descending = problem.descending;
  char* values = static_cast<char*>(problem.values) + first * problem.length * size;
  p.values = values;
  const int bits = static_cast<int>(8 * size);
  const int row_bits = std::bit_width(static_cast<std::uint64_t>(rows - 1));
  p.row_bits_from = bits < 64 ? bits : 0;
  RadixSort sort(p.count, "sort", stream);
  p.keys = sort.keys();
  p.places = sort.places();
  launch<sort_keys_kernel>(shape_of(p.count), stream, device, p);
  sort.run(bits < 64 ? bits + row_bits : 64);
  p.places = sort.places();
  if (bits == 64 && rows > 1) {
    p.keys = sort.keys();
    launch<sort_rows_kernel>(shape_of(p.count), stream, device, p);
    sort.run(row_bits);
    p.places = sort.places();
  }
  DeviceBuffer unsorted;
  if (problem.indices != nullptr) {
    p.indices = problem.indices + first * problem.length;
  } else {
    unsorted = DeviceBuffer(static_cast<std::size_t>(p.count * size), Device::cuda(device), stream);
    ArrayCopy copy;
    copy.dims.rank = 1;
    copy.dims.shape[0] = p.count;
    copy.result.data = unsorted.data();
    copy.source.data = values;
    copy.result.dtype = copy.source.dtype = problem.dtype;
    copy.result.strides[0] = copy.source.strides[0] = 1;
    array_copy(copy, stream);
    p.values = unsorted.as<char>();
    p.sorted = values;
  }
  launch<sort_results_kernel>(shape_of(p.count), stream, device, p);
}

inline constexpr std::int64_t kMostSorted = std::int64_t{1} << 31;

}  // namespace

RadixSort::RadixSort(std::int64_t count, const char* op, StreamView stream)
    : count_(count), stream_(stream) {
  MEMBOUND_CHECK(count <= kMostSorted, InvalidArgument, op, "expected at most ", kMostSorted,
                 " elements to sort on a GPU, got ", count);
  const Device device = Device::cuda(current_device());
  for (int i = 0; i < 2; ++i) {
    keys_[i] = DeviceBuffer(static_cast<std::size_t>(count) * 8, device, stream);
    places_[i] = DeviceBuffer(static_cast<std::size_t>(count) * 4, device, stream);
  }
}

void RadixSort::run(int bits) {
  cub::DoubleBuffer<std::uint64_t> keys(this->keys(), keys_[1 - current_].as<std::uint64_t>());
  cub::DoubleBuffer<std::uint32_t> places(this->places(),
                                          places_[1 - current_].as<std::uint32_t>());
  const auto sort = [&](void* memory, std::size_t& bytes) {
    MEMBOUND_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
        memory, bytes, keys, places, static_cast<std::uint32_t>(count_), 0, bits,
        static_cast<cudaStream_t>(stream_.handle())));
  };
  std::size_t bytes = 0;
  sort(nullptr, bytes);
  const DeviceBuffer memory(bytes, Device::cuda(current_device()), stream_);
  sort(memory.data(), bytes);
  if (keys.selector == 1) current_ = 1 - current_;
}

void array_sort(const ArraySort& problem, StreamView stream) {
  const std::int64_t batch =
      std::max<std::int64_t>(1, kMostSorted / std::max<std::int64_t>(1, problem.length));
  for (std::int64_t first = 0; first < problem.rows; first += batch)
    sort_batch(problem, first, std::min(batch, problem.rows - first), stream);
}

}  // namespace membound::cuda
