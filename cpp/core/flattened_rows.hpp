// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/rows.hpp"

namespace membound {

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
  template <class Pointer>
  BasicRows<Pointer> array(const BasicTensorView<Pointer>& matrix, const char* argument) const {
    return {matrix.data, matrix.dtype, layout(matrix, argument), column_stride(matrix)};
  }

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

}  // namespace membound
