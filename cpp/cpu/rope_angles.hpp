// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/isa.hpp"
#include "ops/rope.hpp"

// What ops that turn heads on the CPU share.
namespace membound::cpu {

inline const char* bytes_of(const void* data) { return static_cast<const char*>(data); }

inline std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

// cos and sin of pairs [first, first + pairs) of one token, in sequence.
class RopeTokenAngles {
 public:
  RopeTokenAngles(const RopeProblem& problem, const KernelTable& table)
      : p_(problem), table_(table) {}

  // cos, sin: of the first pair.
  void of_token(std::int64_t b, std::int64_t s, std::int64_t first, std::int64_t pairs, void* cos,
                void* sin) const {
    const std::int64_t size = size_of(accumulate_dtype(p_.dtype));
    void* cos_of_0 = static_cast<char*>(cos) - first * size;
    void* sin_of_0 = static_cast<char*>(sin) - first * size;
    const std::int64_t last = first + pairs;
    if (!p_.interleaved_sections) {
      std::int64_t from = first;
      for (int axis = 0; axis < p_.axes; ++axis) {
        const std::int64_t end = p_.axes == 1 ? last : std::min(last, p_.section_bounds[axis]);
        if (from < end) run(axis, b, s, from, end, 1, cos_of_0, sin_of_0);
        from = std::max(from, end);
      }
      return;
    }
    run(0, b, s, first, last, 1, cos_of_0, sin_of_0);
    for (int axis = 1; axis < p_.axes; ++axis) {
      std::int64_t from = first / p_.axes * p_.axes + axis;
      if (from < first) from += p_.axes;
      const std::int64_t end = std::min(last, p_.section_bounds[axis] * p_.axes);
      if (from < end) run(axis, b, s, from, end, p_.axes, cos_of_0, sin_of_0);
    }
  }

 private:
  void run(int axis, std::int64_t b, std::int64_t s, std::int64_t first, std::int64_t last,
           std::int64_t step, void* cos_out, void* sin_out) const {
    static constexpr double kOne = 1, kNone = 0;
    static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    RopeAngleRun run{};
    run.dtype = p_.dtype;
    run.inverse = p_.inverse;
    run.first = first;
    run.last = last;
    run.step = step;
    run.cos_out = cos_out;
    run.sin_out = sin_out;
    std::int64_t position = 0;
    const bool found = p_.own_rows || p_.where.find(axis, b, s, position);
    const bool has_row = p_.own_rows || (position >= 0 && position < p_.positions);
    if (!found || (p_.cos != nullptr && !has_row)) {  // no turn, or no such row: one number
      run.cos = found ? &kNan : &kOne;
      run.sin = found ? &kNan : &kNone;
      run.table_dtype = DType::kFloat64;
    } else if (p_.cos != nullptr) {
      const std::int64_t row = p_.own_rows ? s : position, size = size_of(p_.table_dtype);
      run.cos = bytes_of(p_.cos) + size * (axis * p_.cos_axis_stride + b * p_.cos_batch_stride +
                                           row * p_.cos_row_stride);
      run.sin = bytes_of(p_.sin) + size * (axis * p_.sin_axis_stride + b * p_.sin_batch_stride +
                                           row * p_.sin_row_stride);
      run.table_dtype = p_.table_dtype;
      run.cos_col_stride = p_.cos_col_stride;
      run.sin_col_stride = p_.sin_col_stride;
    } else {
      run.freqs = p_.freqs;
      run.table_dtype = p_.freqs_dtype;
      run.freqs_stride = p_.freqs_stride;
      run.position = static_cast<double>(position);
      run.scaling = p_.scaling;
    }
    table_.rope_angles(run);
  }

  const RopeProblem& p_;
  const KernelTable& table_;
};

}  // namespace membound::cpu
