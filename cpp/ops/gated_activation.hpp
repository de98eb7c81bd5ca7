// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/gated_activation.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, or to a single row if all arrays
// are contiguous and no row scale tells rows apart.
struct GatedActivationProblem {
  const void* gate;
  const void* up;         // null: none
  const void* row_scale;  // null: none; else accumulate_dtype(dtype)
  void* out;              // may be gate or up: in place
  DType dtype;
  GatedActivationOptions options;
  std::int64_t rows;  // at least 1
  std::int64_t cols;  // at least 1
  RowLayout gate_rows, up_rows, out_rows, row_scale_rows;
  std::int64_t gate_col_stride, up_col_stride, out_col_stride;
};

// The checks of inputs that forward and backward share.
void check_gate_and_up(const ConstTensorView& gate, const ConstTensorView* up,
                       const ConstTensorView* row_scale, const GatedActivationOptions& options,
                       const char* op);

// Flattens the matrices of a problem to rows x cols: to one row if all are contiguous, and with
// another axis as the columns if it is contiguous in all of them, as in transposed matrices (64 x
// 4096 float32, one CPU thread: 357 -> 99 us). The op is element-wise, so any common order is
// right.
class FlattenedRows {
 public:
  FlattenedRows(const ConstTensorView& like, bool rows_matter, const char* op);
  // Must be called for every matrix before rows().
  void add(const ConstTensorView* matrix);

  std::int64_t rows() const { return is_flat() ? 1 : like_.size() / cols(); }
  std::int64_t cols() const { return is_flat() ? like_.size() : like_.shape[axis()]; }
  RowLayout layout(const ConstTensorView& matrix, const char* argument) const;
  std::int64_t column_stride(const ConstTensorView& matrix) const;

 private:
  bool is_flat() const { return permutes_ ? flat_permuted_ : flat_; }
  int axis() const { return permutes_ ? contiguous_axis_ : like_.rank - 1; }

  ConstTensorView like_;
  const char* op_;
  int contiguous_axis_;  // the contiguous axis of `like`, if it is not the last
  bool permutes_;        // that axis is contiguous in every matrix
  bool flat_;            // one row, with the axes in their order
  bool flat_permuted_;   // one row, with that axis moved to the end
};

namespace cpu {
void gated_activation(const GatedActivationProblem& problem);
}
namespace cuda {
void gated_activation(const GatedActivationProblem& problem, StreamView stream);
}

}  // namespace membound
