// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/layout.hpp"
#include "core/rows.hpp"
#include "cpu/isa.hpp"
#include "membound/device_buffer.hpp"

// What the CPU back ends of row-wise ops share.
namespace membound::cpu {

// The least work that is worth waking another thread for.
inline constexpr std::int64_t kBytesPerThread = 128 << 10;

// True if an output of this size should be written by non-temporal stores.
bool pays_to_bypass_cache(std::int64_t bytes);

// How norms and their gradients access memory, for matrices of this size in all.
struct NormMemory {
  bool non_temporal;    // for results that are not in a cache yet
  bool prefetch_ahead;  // for rows before their use
};
NormMemory norm_memory(std::int64_t matrix_bytes, bool gated);

// The prefetch distance in bytes for a matrix of this size that is read sequentially; 0: no
// prefetch.
std::int64_t prefetch_distance(std::int64_t matrix_bytes);

inline std::int64_t row_stride(const RowLayout& layout) {
  return layout.rank == 0 ? 0 : layout.strides[layout.rank - 1];
}

// The number of rows from `row` on that share one stride, at most `limit`.
inline std::int64_t run_length(const RowLayout& layout, std::int64_t row, std::int64_t limit) {
  if (layout.rank <= 1) return limit;
  const std::int64_t inner = layout.shape[layout.rank - 1];
  return std::min(limit, inner - row % inner);
}

// `data` advanced by `elements`; null stays null.
template <class Pointer>
Pointer offset_pointer(Pointer data, std::int64_t elements, DType dtype) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data == nullptr) return data;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(dtype_size(dtype));
}

// Moves `data` to the first of a run of rows, and shortens the run where the layout's innermost
// axis ends.
template <class Pointer, class Base>
void seek_row(Pointer& data, Base base, const RowLayout& layout, DType dtype, std::int64_t row,
              std::int64_t& count) {
  if (base == nullptr) return;
  data = offset_pointer(base, layout.offset(row), dtype);
  count = run_length(layout, row, count);
}

template <class Pointer, class Base>
void seek_row(Pointer& data, const BasicRows<Base>& from, std::int64_t row, std::int64_t& count) {
  seek_row(data, from.data, from.layout, from.dtype, row, count);
}

// A weight as kernels take it; `storage` owns a converted copy.
struct PreparedWeight {
  const void* data;
  WeightForm form;
  DeviceBuffer storage;
};
struct WeightSource {
  const void* data;  // null: none
  DType dtype;
  std::int64_t stride;
  std::int64_t cols;
  double offset;
  DType x_dtype;
};
// True if kernels can read the weight in place.
inline bool is_native(const WeightSource& weight) {
  return weight.dtype == weight.x_dtype && weight.stride == 1 && weight.offset == 0.0;
}
// A weight of ones in place of a missing one.
WeightSource ones(WeightSource none);
// widen: convert the weight even if kernels can read it in place.
PreparedWeight prepare_weight(const WeightSource& weight, bool widen, const KernelTable& table);

}  // namespace membound::cpu
