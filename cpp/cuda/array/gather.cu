// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Elements at offsets that are computed from index arrays, and the places of true elements.
#include "cuda/array/index.cuh"
#include "cuda/array/radix_sort.hpp"
#include "cuda/array/unit.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "membound/device_buffer.hpp"

namespace membound::cuda {

namespace {

inline constexpr int kGatherThreads = 256;
inline constexpr int kGatherItems = 4;  // elements per thread

LaunchShape shape_of(std::int64_t elements, int items = 1) {
  const std::int64_t block = std::int64_t{kGatherThreads} * items;
  return {(elements + block - 1) / block, kGatherThreads};
}

// One index array: its share of each offset.
struct OffsetsParams {
  ArrayIndex index;
  int axis;
  const std::int64_t* indices;  // or null, and `number` everywhere
  std::int64_t number, extent, stride;
  std::int64_t index_strides[1][kMaxRank];
  std::int64_t* offsets;
  unsigned long long* bad;  // the least element * kMaxRank + axis whose index is out of range
};

__global__ void __launch_bounds__(kGatherThreads)
    array_offsets_kernel(const __grid_constant__ OffsetsParams p) {
  pdl_wait_and_launch();
  const std::int64_t element = std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (element >= p.index.size) return;
  std::int64_t at[1];
  p.index.offsets(element, p.index_strides, at);
  std::int64_t index = p.indices == nullptr ? p.number : p.indices[at[0]];
  if (index < -p.extent || index >= p.extent) {
    atomicMin(p.bad, static_cast<unsigned long long>(element * kMaxRank + p.axis));
    index = 0;
  }
  const std::int64_t share = (index < 0 ? index + p.extent : index) * p.stride;
  p.offsets[element] = p.axis == 0 ? share : p.offsets[element] + share;
}

struct GatherParams {
  ArrayIndex index;
  std::int64_t strides[3][kMaxRank];  // indexed, other, offsets
  char* indexed;
  char* other;
  const std::int64_t* offsets;
  const std::uint8_t* written;  // per offset: whether a scatter writes there; null: all
  std::uint64_t scalar;         // instead of other
  int item_bytes;
  bool is_scatter;
};

__global__ void __launch_bounds__(kGatherThreads)
    array_gather_kernel(const __grid_constant__ GatherParams p) {
  pdl_wait_and_launch();
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (kGatherThreads * kGatherItems) + threadIdx.x;
#pragma unroll
  for (int item = 0; item < kGatherItems; ++item) {
    const std::int64_t linear = first + item * kGatherThreads;
    if (linear >= p.index.size) return;
    std::int64_t at[3];
    p.index.offsets(linear, p.strides, at);
    char* place = p.indexed + (at[0] + p.offsets[at[2]]) * p.item_bytes;
    char* other = p.other + at[1] * p.item_bytes;
    if (!p.is_scatter) {
      store_bits(other, p.item_bytes, load_bits(place, p.item_bytes));
    } else if (p.written == nullptr || p.written[at[2]] != 0) {
      store_bits(place, p.item_bytes,
                 p.other == nullptr ? p.scalar : load_bits(other, p.item_bytes));
    }
  }
}

// Sorted offsets with their places: of equal ones the last is written.
struct LastParams {
  const std::uint64_t* offsets;
  const std::uint32_t* places;
  std::uint8_t* written;
  std::int64_t count;
};
__global__ void __launch_bounds__(kGatherThreads)
    array_last_kernel(const __grid_constant__ LastParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (i >= p.count) return;
  p.written[p.places[i]] = i + 1 == p.count || p.offsets[i] != p.offsets[i + 1];
}

struct IotaParams {
  const std::int64_t* from;
  std::uint64_t* keys;
  std::uint32_t* places;
  std::int64_t count;
};
__global__ void __launch_bounds__(kGatherThreads)
    array_places_kernel(const __grid_constant__ IotaParams p) {
  pdl_wait_and_launch();
  const std::int64_t i = std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (i >= p.count) return;
  p.keys[i] = static_cast<std::uint64_t>(p.from[i]);
  p.places[i] = static_cast<std::uint32_t>(i);
}

// Which offsets of a scatter are written, when several may be equal.
DeviceBuffer last_of_equal(const std::int64_t* offsets, std::int64_t count, StreamView stream) {
  const int device = current_device();
  RadixSort sort(count, "array_scatter", stream);
  launch<array_places_kernel>(shape_of(count), stream, device,
                              IotaParams{offsets, sort.keys(), sort.places(), count});
  sort.run(64);
  DeviceBuffer written(static_cast<std::size_t>(count), Device::cuda(device), stream);
  launch<array_last_kernel>(
      shape_of(count), stream, device,
      LastParams{sort.keys(), sort.places(), written.as<std::uint8_t>(), count});
  return written;
}

struct NonzeroParams {
  const bool* mask;
  const std::int64_t* counted;  // true elements up to and with each
  ArrayIndex index;
  std::int64_t* indices[kMaxRank];
};

__global__ void __launch_bounds__(kGatherThreads)
    array_nonzero_kernel(const __grid_constant__ NonzeroParams p) {
  pdl_wait_and_launch();
  const std::int64_t element = std::int64_t{blockIdx.x} * kGatherThreads + threadIdx.x;
  if (element >= p.index.size || !p.mask[element]) return;
  const std::int64_t to = p.counted[element] - 1;
  std::int64_t rest = element;
#pragma unroll 1
  for (int axis = p.index.rank - 1; axis >= 0; --axis) {
    const std::int64_t outer = p.index.extents[axis].quotient(rest);
    p.indices[axis][to] = rest - outer * p.index.extents[axis].extent;
    rest = outer;
  }
}

}  // namespace

BadIndex array_index_offsets(const ArrayIndexOffsets& problem, StreamView stream) {
  const Device device = Device::cuda(current_device());
  const std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t found = none;
  DeviceBuffer bad(sizeof(found), device, stream);
  copy_bytes(bad.data(), device, &none, Device::cpu(), sizeof(none), stream);
  OffsetsParams p;
  p.index = array_index(problem.dims);
  p.offsets = problem.offsets;
  p.bad = bad.as<unsigned long long>();
  p.index_strides[0][0] = 0;
  const auto use = [&](int axis) {
    const ArrayOperand& indices = problem.indices[axis];
    p.axis = axis;
    p.indices = static_cast<const std::int64_t*>(indices.data);
    std::memcpy(&p.number, indices.scalar, sizeof(p.number));
    for (int dim = 0; dim < problem.dims.rank; ++dim)
      p.index_strides[0][dim] = indices.data == nullptr ? 0 : indices.strides[dim];
    p.extent = problem.extents[axis];
    p.stride = problem.strides[axis];
  };
  for (int axis = 0; axis < problem.indexed; ++axis) {
    use(axis);
    launch<array_offsets_kernel>(shape_of(p.index.size), stream, device.index, p);
  }
  copy_bytes(&found, Device::cpu(), bad.data(), device, sizeof(found), stream);
  stream.synchronize();
  BadIndex result;
  if (found == none) return result;
  result.element = static_cast<std::int64_t>(found / kMaxRank);
  result.axis = static_cast<int>(found % kMaxRank);
  use(result.axis);
  std::int64_t rest = result.element, at = 0;
  for (int dim = problem.dims.rank - 1; dim >= 0; --dim) {
    at += rest % problem.dims.shape[dim] * p.index_strides[0][dim];
    rest /= problem.dims.shape[dim];
  }
  result.index = p.number;
  if (p.indices != nullptr) {
    copy_bytes(&result.index, Device::cpu(), p.indices + at, device, sizeof(result.index), stream);
    stream.synchronize();
  }
  return result;
}

void array_gather(const ArrayGather& problem, StreamView stream) {
  GatherParams p;
  p.index = array_index(problem.dims);
  std::int64_t offsets = 1;
  for (int axis = 0; axis < std::max(problem.dims.rank, 1); ++axis) {
    const bool there = axis < problem.dims.rank;
    p.strides[0][axis] = there ? problem.indexed.strides[axis] : 0;
    p.strides[1][axis] = there && problem.other.data != nullptr ? problem.other.strides[axis] : 0;
    p.strides[2][axis] = there ? problem.offset_strides[axis] : 0;
    if (p.strides[2][axis] != 0) offsets *= problem.dims.shape[axis];
  }
  p.indexed = static_cast<char*>(problem.indexed.data);
  p.other = static_cast<char*>(problem.other.data);
  p.offsets = problem.offsets;
  std::memcpy(&p.scalar, problem.other.scalar, sizeof(p.scalar));
  p.item_bytes = static_cast<int>(dtype_size(problem.indexed.dtype));
  p.is_scatter = problem.is_scatter;
  DeviceBuffer written;
  if (p.is_scatter && p.other != nullptr && offsets > 1)
    written = last_of_equal(problem.offsets, offsets, stream);
  p.written = written.as<std::uint8_t>();
  launch<array_gather_kernel>(shape_of(p.index.size, kGatherItems), stream, current_device(), p);
}

void array_nonzero(const ArrayNonzero& problem, StreamView stream) {
  const int device = current_device();
  NonzeroParams p;
  p.mask = problem.mask;
  p.index = array_index(problem.dims);
  const DeviceBuffer counted(static_cast<std::size_t>(p.index.size) * sizeof(std::int64_t),
                             Device::cuda(device), stream);
  p.counted = counted.as<std::int64_t>();
  std::copy(problem.indices, problem.indices + problem.dims.rank, p.indices);
  ArrayScan scan;
  scan.op = ScanOp::kSum;
  scan.include_initial = false;
  scan.length = p.index.size;
  scan.source.data = const_cast<bool*>(problem.mask);
  scan.source.dtype = DType::kBool;
  scan.result.data = counted.data();
  scan.result.dtype = DType::kInt64;
  scan.source_stride = scan.result_stride = 1;
  array_scan(scan, stream);
  launch<array_nonzero_kernel>(shape_of(p.index.size), stream, device, p);
}

}  // namespace membound::cuda
