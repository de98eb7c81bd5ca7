// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/layout.hpp"
#include "cpu/isa.hpp"
#include "membound/device_buffer.hpp"

// What the CPU back ends of ops over rows have in common.
namespace membound::cpu {

// One thread's share below this costs less than waking another (research: hot crossover 8 rows x
// 4096 float32, cold ten times that).
inline constexpr std::int64_t kBytesPerThread = 128 << 10;

// An output of this many bytes should go around the cache.
bool pays_to_bypass_cache(std::int64_t bytes);

// How norms and their gradients go about memory, of matrices of so many bytes in all.
struct NormMemory {
  bool around_cache;  // for results that are in no cache yet
  bool ask_ahead;     // for rows before their use
};
NormMemory norm_memory(std::int64_t matrix_bytes, bool gated);

// How many bytes before its use kernels ask for what they read in sequence of a matrix of so many;
// 0: they do not.
std::int64_t ask_distance(std::int64_t matrix_bytes);

inline std::int64_t row_stride(const RowLayout& layout) {
  return layout.rank == 0 ? 0 : layout.strides[layout.rank - 1];
}

// Rows from `row` on that share one stride, at most `limit`.
inline std::int64_t run_length(const RowLayout& layout, std::int64_t row, std::int64_t limit) {
  if (layout.rank <= 1) return limit;
  const std::int64_t inner = layout.shape[layout.rank - 1];
  return std::min(limit, inner - row % inner);
}

// So many elements behind `data`, which may be null.
template <class Pointer>
Pointer behind(Pointer data, std::int64_t elements, DType dtype) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data == nullptr) return data;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(dtype_size(dtype));
}

// One array of a run of rows: moves `data` to its first row and shortens the run where the layout
// leaves its innermost axis.
template <class Pointer, class Base>
void enter_row(Pointer& data, Base base, const RowLayout& layout, DType dtype, std::int64_t row,
               std::int64_t& count) {
  if (base == nullptr) return;
  data = behind(base, layout.offset(row), dtype);
  count = run_length(layout, row, count);
}

// A weight as kernels take it; what had to be made ready is in `storage`.
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
// Kernels could read it as it is.
inline bool is_native(const WeightSource& weight) {
  return weight.dtype == weight.x_dtype && weight.stride == 1 && weight.offset == 0.0;
}
// A weight of ones in the place of none.
WeightSource ones(WeightSource none);
// widen: make a weight ready that could be read as it is, too.
PreparedWeight prepare_weight(const WeightSource& weight, bool widen, const KernelTable& table);

}  // namespace membound::cpu
