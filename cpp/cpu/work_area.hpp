// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "membound/device.hpp"
#include "membound/device_buffer.hpp"
#include "ops/rms_norm_generic.hpp"

// Norms over arrays of several dtypes: a few rows at a time are widened into a work area, run
// through the kernels of the accumulate dtype, and rounded once on output.
namespace membound::cpu {

// Rows per pass: enough that narrow rows amortise the call.
inline std::int64_t rows_per_pass(std::int64_t cols) {
  constexpr std::int64_t kElements = 4096;
  return std::clamp<std::int64_t>(kElements / cols, 1, kBlockOfRows);
}

// One slot per array and thread, in the accumulate dtype.
class WorkArea {
 public:
  WorkArea(DType dtype, std::int64_t cols, int slots, std::int64_t tasks)
      : dtype_(dtype),
        rows_(rows_per_pass(cols)),
        stride_((cols + kLine - 1) / kLine * kLine),
        slots_(slots),
        slot_bytes_(static_cast<std::size_t>(rows_ * stride_) * dtype_size(dtype)),
        storage_(static_cast<std::size_t>(slots * tasks) * slot_bytes_, Device::cpu()) {}

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t stride() const { return stride_; }
  void* slot(std::int64_t task, int slot) const {
    return storage_.as<char>() + static_cast<std::size_t>(task * slots_ + slot) * slot_bytes_;
  }
  RowLayout layout() const {
    RowLayout layout;
    layout.rank = 1;
    layout.shape[0] = rows_;
    layout.strides[0] = stride_;
    return layout;
  }

 private:
  static constexpr std::int64_t kLine = 16;  // elements
  DType dtype_;
  std::int64_t rows_, stride_;
  int slots_;
  std::size_t slot_bytes_;
  DeviceBuffer storage_;
};

// Converts `rows` rows from `row` on between an array and a slot of the work area.
class Exchange {
 public:
  Exchange(const WorkArea& area, std::int64_t cols, const KernelTable& table)
      : area_(area), cols_(cols), table_(table) {}

  void widen(const InputRows& from, std::int64_t row, std::int64_t rows, void* slot) const {
    each_run(from, row, rows, [&](const void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({data, offset_pointer(slot, at * area_.stride(), area_.dtype()),
                           from.dtype, area_.dtype(), true, count, cols_, row_stride(from.layout),
                           from.col_stride, area_.stride(), 1});
    });
  }
  void narrow(const void* slot, const OutputRows& to, std::int64_t row, std::int64_t rows) const {
    each_run(to, row, rows, [&](void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({offset_pointer(slot, at * area_.stride(), area_.dtype()), data,
                           area_.dtype(), to.dtype, false, count, cols_, area_.stride(), 1,
                           row_stride(to.layout), to.col_stride});
    });
  }
  // One number per row, written contiguously.
  void widen_statistic(const InputRows& from, std::int64_t row, std::int64_t rows, void* to) const {
    each_run(from, row, rows, [&](const void* data, std::int64_t at, std::int64_t count) {
      table_.convert_rows({data, offset_pointer(to, at, area_.dtype()), from.dtype, area_.dtype(),
                           true, count, 1, row_stride(from.layout), 1, 1, 1});
    });
  }
  // Rounds a slot to a dtype and back, through another slot.
  void round(void* slot, DType dtype, std::int64_t rows, void* rounded) const {
    const std::int64_t stride = area_.stride();
    table_.convert_rows(
        {slot, rounded, area_.dtype(), dtype, false, rows, cols_, stride, 1, stride, 1});
    table_.convert_rows(
        {rounded, slot, dtype, area_.dtype(), true, rows, cols_, stride, 1, stride, 1});
  }
  // slot *= silu(gate)
  void multiply_silu(void* slot, const void* gate, std::int64_t rows) const {
    const std::int64_t stride = area_.stride();
    table_.multiply_silu(
        {gate, slot, area_.dtype(), area_.dtype(), true, rows, cols_, stride, 1, stride, 1});
  }

 private:
  // Calls body(data, at, count) for each run of rows that share a stride; at: the rows before it.
  template <class Pointer, class Body>
  static void each_run(const BasicRows<Pointer>& array, std::int64_t row, std::int64_t rows,
                       Body body) {
    for (std::int64_t at = 0; at < rows;) {
      std::int64_t count = rows - at;
      Pointer data = nullptr;
      seek_row(data, array.data, array.layout, array.dtype, row + at, count);
      body(data, at, count);
      at += count;
    }
  }

  const WorkArea& area_;
  const std::int64_t cols_;
  const KernelTable& table_;
};

// The weight, or its offset alone if there is no weight.
inline WeightSource factor_of(const InputColumns& weight, double offset, std::int64_t cols,
                              DType dtype) {
  static constexpr float kNothing = 0;
  if (weight.data == nullptr && offset != 0.0) {
    return {&kNothing, DType::kFloat32, 0, cols, offset, dtype};
  }
  return {weight.data, weight.dtype, weight.stride, cols, offset, dtype};
}

inline bool rounds(Rounding rounding, DType to, DType accumulate) {
  return rounding == Rounding::kBeforeWeight && dtype_size(to) < dtype_size(accumulate);
}

// multiply_rows: each row times the factors. scale_rows: each row times a number of its own.
template <class T>
void multiply_rows(void* slot, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                   const void* factors) {
  const T* by = static_cast<const T*>(factors);
  for (std::int64_t row = 0; row < rows; ++row) {
    T* to = static_cast<T*>(slot) + row * stride;
    for (std::int64_t col = 0; col < cols; ++col) to[col] *= by[col];
  }
}
template <class T>
void scale_rows(const void* from, void* slot, std::int64_t stride, std::int64_t rows,
                std::int64_t cols, const void* of_rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* x = static_cast<const T*>(from) + row * stride;
    T* to = static_cast<T*>(slot) + row * stride;
    const T by = static_cast<const T*>(of_rows)[row];
    for (std::int64_t col = 0; col < cols; ++col) to[col] = x[col] * by;
  }
}

// Splits rows into tasks, each with its own slots of the work area.
inline std::int64_t tasks_of(std::int64_t rows, std::int64_t cols) {
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / (16 * cols));
  return std::clamp<std::int64_t>(rows / grain, 1, cpu_threads());
}
// Calls body(task, first, last).
template <class Body>
void each_task(std::int64_t rows, std::int64_t tasks, Body body) {
  parallel_for(tasks, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t task = first; task < last; ++task) {
      body(task, rows * task / tasks, rows * (task + 1) / tasks);
    }
  });
}

}  // namespace membound::cpu
