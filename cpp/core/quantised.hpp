// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/layout.hpp"
#include "membound/dtype.hpp"

// 8-bit results and their scales, for any op that quantises: checks, and what the back ends
// receive.
namespace membound {

struct QuantisedResult {
  void* out;
  DType out_dtype;  // kFloat8E4M3, kFloat8E5M2 or kInt8
  RowLayout out_rows;
  std::int64_t out_col_stride;
  const float* static_scale;  // null: dynamic
  float* scale;               // null with a static scale
  RowLayout scale_rows;
  std::int64_t scale_col_stride;  // between groups of a row
  std::int64_t group_size;        // columns that share a scale: 64, 128 or all
  float scale_upper_bound;        // infinity for none
};

// An input that no output may overlap; view may be null.
struct ReadArray {
  const ConstTensorView* view;
  const char* name;
};

// The arguments of the user's call; absent ones are null.
struct QuantisedCall {
  const char* op;
  const ConstTensorView& values;  // with the shape and device of what is quantised
  const char* values_name;
  const TensorView& out;
  const ConstTensorView* static_scale;
  const TensorView* scale;
  std::int64_t group_size;  // 0: all columns
  double scale_upper_bound;
};
// read: inputs, besides the static scale, that neither out nor scales may overlap.
void check_quantised(const QuantisedCall& call, std::initializer_list<ReadArray> read);
QuantisedResult quantised_result(const QuantisedCall& call);

}  // namespace membound
