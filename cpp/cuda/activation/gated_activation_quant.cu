// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/activation/gated_activation_quant_kernel.cuh"
#include "cuda/activation/gated_activation_quant_rows.cuh"
#include "cuda/activation/gated_activation_quant_tile.cuh"
#include "cuda/launch/device.hpp"
#include "cuda/row/array.hpp"
#include "ops/gated_activation_quant.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool all_take_vectors(const GatedActivationQuantProblem& problem) {
  const GatedActivationProblem& given = problem.activation;
  bool fits = given.cols / kPack<T> < std::int64_t{1} << 30 &&  // units are counted in 32 bits
              is_vectorisable<T>(given.gate, given.gate_rows, given.gate_col_stride, given.cols) &&
              is_vectorisable<T>(given.up, given.up_rows, given.up_col_stride, given.cols) &&
              problem.out_col_stride == 1 &&
              reinterpret_cast<std::uintptr_t>(problem.out) % kPack<T> == 0;
  for (int axis = 0; axis < problem.out_rows.rank; ++axis)
    fits = fits && problem.out_rows.strides[axis] % kPack<T> == 0;
  return fits;
}

// Flattens contiguous arrays to one row if rows need not be told apart: then only the total number
// of elements has to be a multiple of the vector width.
GatedActivationQuantProblem flattened(const GatedActivationQuantProblem& problem) {
  const GatedActivationProblem& given = problem.activation;
  const auto contiguous = [&](const void* data, const RowLayout& rows, std::int64_t col_stride) {
    return data == nullptr || ((given.cols == 1 || col_stride == 1) && rows.rank <= 1 &&
                               (rows.rank == 0 || rows.strides[0] == given.cols));
  };
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  const std::int64_t all = given.rows * given.cols;
  if (problem.scale != nullptr || given.row_scale != nullptr || all > kMost || all % 8 != 0 ||
      !contiguous(given.gate, given.gate_rows, given.gate_col_stride) ||
      !contiguous(given.up, given.up_rows, given.up_col_stride) ||
      !contiguous(problem.out, problem.out_rows, problem.out_col_stride)) {
    return problem;
  }
  GatedActivationQuantProblem flat = problem;
  flat.activation.rows = 1;
  flat.activation.cols = all;
  flat.activation.gate_rows = flat.activation.up_rows = flat.out_rows = RowLayout{};
  flat.activation.gate_col_stride = flat.activation.up_col_stride = flat.out_col_stride = 1;
  return flat;
}

template <class T>
bool all_support_unaligned(const GatedActivationQuantProblem& problem) {
  const GatedActivationProblem& given = problem.activation;
  const std::int64_t up = given.up != nullptr ? given.up_col_stride : 1;
  return given.cols < std::int64_t{1} << 30 &&
         supports_unaligned<T>({given.gate_col_stride, up, problem.out_col_stride}, given.cols);
}

// Kernel parameters of a problem whose rows are cut into units of U.
template <class U>
GatedActivationQuantParams<typename U::A> params_of(const GatedActivationQuantProblem& problem) {
  const GatedActivationProblem& given = problem.activation;
  GatedActivationQuantParams<typename U::A> p{};
  p.gate = gate_array(given.gate, given.gate_rows, given.gate_col_stride);
  p.up = gate_array(given.up, given.up_rows, given.up_col_stride);
  p.row_scale = gate_array(given.row_scale, given.row_scale_rows, 1);
  p.out = gate_array(problem.out, problem.out_rows, problem.out_col_stride);
  p.scale = gate_array(problem.scale, problem.scale_rows, problem.scale_col_stride);
  p.static_scale = problem.static_scale;
  p.gate_rows = given.gate_rows;
  p.up_rows = given.up_rows;
  p.row_scale_rows = given.row_scale_rows;
  p.out_rows = problem.out_rows;
  p.scale_rows = problem.scale_rows;
  p.rows = given.rows;
  p.cols = given.cols;
  p.units = (given.cols + U::kWidth - 1) / U::kWidth;
  p.numbers =
      gate_numbers<typename U::A>(given.options, given.up != nullptr && given.row_scale == nullptr);
  p.dtype = given.dtype;
  p.out_dtype = problem.out_dtype;
  const bool grouped = problem.scale != nullptr && problem.group_size < given.cols;
  p.group_lanes = grouped ? static_cast<int>(problem.group_size / U::kWidth) : 0;
  while ((2 << p.group_shift) <= p.group_lanes) ++p.group_shift;
  p.scale_upper_bound = problem.scale_upper_bound;
  return p;
}

// End of an array whose rows have unit stride.
template <class T>
const char* end_of(const void* data, const RowLayout& layout, const GatedActivationProblem& given) {
  RowArray array{};
  std::int64_t stride = 0;
  RowArrayBuilder{given.rows, given.cols, {}}.place(data, layout, 1, sizeof(T), array, stride);
  return array.end;
}

// Launches the persistent kernel, which is fed by bulk copies; false if it cannot take these rows.
template <class T, Access kAccess>
bool launch_rows(GatedActivationQuantParams<accumulate_t<T>>& p, int device, StreamView stream) {
  if (max_cluster_size(device) == 1) return false;
  constexpr bool kAligned = kAccess == Access::kAligned;
  const auto config = tuning::gated_activation_quant_rows_config(
      p.rows, p.units, kAligned, sizeof(T), max_shared_bytes(device), multiprocessors(device));
  if (config.blocks == 0) return false;
  p.slots = config.slots;
  const LaunchShape shape{
      .blocks = config.blocks, .threads = config.threads, .shared_bytes = config.shared_bytes};
  if constexpr (sizeof(T) == 2 || !kAligned) {
    if (config.units_of_thread == 3) {
      launch<gated_activation_quant_rows_kernel<T, kAccess, 3>>(shape, stream, device, p);
      return true;
    }
  }
  launch<gated_activation_quant_rows_kernel<T, kAccess, 2>>(shape, stream, device, p);
  return true;
}

// Launches the persistent kernel for unaligned rows; false if it cannot take them.
template <class T>
bool launch_unaligned(const GatedActivationQuantProblem& problem, StreamView stream) {
  const GatedActivationProblem& given = problem.activation;
  auto p = params_of<QuantUnit<T, Access::kUnaligned>>(problem);
  if (p.group_lanes != 0) return false;
  p.gate_end = end_of<T>(given.gate, given.gate_rows, given);
  p.up_end = end_of<T>(given.up, given.up_rows, given);
  p.units = (given.cols + 2 * (kPack<T> - 1)) / kPack<T>;
  return launch_rows<T, Access::kUnaligned>(p, current_device(), stream);
}

// Launches the kernels of aligned rows that keep results in registers; false if they cannot take
// these rows. one_scale: each row has one scale.
template <class T>
bool launch_aligned(GatedActivationQuantParams<accumulate_t<T>>& p, bool one_scale, int device,
                    StreamView stream) {
  const int group_lanes = p.group_lanes > 0 ? p.group_lanes : 1;
  p.config =
      tuning::quant_tile_config(p.rows, p.units, group_lanes, one_scale, max_cluster_size(device));
  p.cluster = one_scale ? static_cast<int>(p.config.tiles) : 1;
  const bool many = one_scale && p.rows > multiprocessors(device);
  if (many && !tuning::fills_threads(p.config) &&
      launch_rows<T, Access::kAligned>(p, device, stream)) {
    return true;
  }
  // One block that stages a wide row's results is faster than a cluster if rows are many (H100,
  // bfloat16 8192 x 18944: 336 -> 306 us).
  constexpr std::size_t kUnitBytes = kPack<T> * sizeof(accumulate_t<T>);
  const bool holds = p.units <= tuning::quant_units_staged(kUnitBytes, max_shared_bytes(device));
  if (p.config.blocks == 0 || (many && p.config.tiles > 1 && holds)) return false;
  launch<gated_activation_quant_tile_kernel<T>>(
      {.blocks = p.config.blocks, .threads = p.config.threads, .cluster = p.cluster}, stream,
      device, p);
  return true;
}

template <class T, Access kAccess>
void launch_units(const GatedActivationQuantProblem& problem, StreamView stream) {
  using U = QuantUnit<T, kAccess>;
  const int device = current_device();
  auto p = params_of<U>(problem);
  const bool one_scale = problem.scale != nullptr && p.group_lanes == 0;
  if constexpr (U::kWhole) {
    if (launch_aligned<T>(p, one_scale, device, stream)) return;
  }
  const int group_lanes = p.group_lanes > 0 ? p.group_lanes : 1;
  p.config = tuning::gated_activation_quant_config(p.rows, p.units, group_lanes, one_scale,
                                                   U::kWidth * sizeof(typename U::A),
                                                   max_shared_bytes(device));
  const LaunchShape shape{.blocks = p.config.blocks,
                          .threads = p.config.threads,
                          .shared_bytes = p.config.result_bytes};
  launch<gated_activation_quant_kernel<T, kAccess>>(shape, stream, device, p);
}

}  // namespace

void gated_activation_quant(const GatedActivationQuantProblem& problem, StreamView stream) {
  const GatedActivationQuantProblem flat = flattened(problem);
  dispatch_floating(problem.activation.dtype, "gated_activation_quant", [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      if (all_take_vectors<T>(flat)) return launch_units<T, Access::kAligned>(flat, stream);
      // Row by row is faster than flattened (bfloat16 16384 x 4096 off by one: 161 -> 117 us).
      if (all_support_unaligned<T>(problem) && launch_unaligned<T>(problem, stream)) return;
      if (all_support_unaligned<T>(flat)) return launch_units<T, Access::kUnaligned>(flat, stream);
    }
    launch_units<accumulate_t<T>, Access::kStrided>(flat, stream);
  });
}

}  // namespace membound::cuda
