// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/quantised.hpp"

#include <cmath>

#include "core/validate.hpp"

namespace membound {

namespace {

using Call = QuantisedCall;
using Read = std::initializer_list<ReadArray>;

bool is_quantised(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2 || dtype == DType::kInt8;
}

// No input may overlap an output.
void check_written(const TensorView& written, const char* name, const Call& call, Read read) {
  check_writable(written, call.op, name);
  for (const ReadArray& one : read) {
    if (one.view) check_overlap(written, name, *one.view, one.name, call.op, /*in_place=*/false);
  }
  if (call.static_scale) check_overlap(written, name, *call.static_scale, "scale", call.op, false);
}

void check_out(const Call& call, Read read) {
  const char* op = call.op;
  check_same_device(call.out, call.values, op, "out", call.values_name);
  MEMBOUND_CHECK(is_quantised(call.out.dtype), TypeMismatch, op,
                 "argument 'out' must be float8_e4m3fn, float8_e5m2 or int8, got ",
                 dtype_name(call.out.dtype));
  check_leading_shape(call.out, call.values, call.values.rank, op, "out");
  check_written(call.out, "out", call, read);
}

void check_static_scale(const Call& call) {
  const ConstTensorView& scale = *call.static_scale;
  check_same_device(scale, call.values, call.op, "scale", call.values_name);
  check_dtype(scale, DType::kFloat32, call.op, "scale");
  MEMBOUND_CHECK(scale.rank <= 1 && scale.size() == 1, InvalidArgument, call.op,
                 "argument 'scale' must have shape () or (1,), got ", shape_text(scale));
  check_floating(scale, call.op, "scale");
  MEMBOUND_CHECK(call.group_size == 0, InvalidArgument, call.op,
                 "argument 'group_size' must be None with a static scale, got ", call.group_size);
  MEMBOUND_CHECK(std::isinf(call.scale_upper_bound), InvalidArgument, call.op,
                 "argument 'scale_upper_bound' must be None with a static scale, got ",
                 call.scale_upper_bound);
}

void check_dynamic_scale(const Call& call, Read read) {
  const TensorView& scale = *call.scale;
  const char* op = call.op;
  ConstTensorView expected = call.values;
  expected.dtype = DType::kFloat32;
  if (call.group_size == 0) {
    --expected.rank;
  } else {
    std::int64_t& groups = expected.shape[expected.rank - 1];
    groups = (groups + call.group_size - 1) / call.group_size;
  }
  check_same_device(scale, call.values, op, "scale_out", call.values_name);
  check_dtype(scale, DType::kFloat32, op, "scale_out");
  check_leading_shape(scale, expected, expected.rank, op, "scale_out");
  check_floating(scale, op, "scale_out");
  check_written(scale, "scale_out", call, read);
  check_overlap(scale, "scale_out", call.out, "out", op, /*in_place=*/false);
}

}  // namespace

void check_quantised(const Call& call, Read read) {
  const char* op = call.op;
  const std::int64_t group = call.group_size;
  MEMBOUND_CHECK(group == 0 || group == 64 || group == 128, InvalidArgument, op,
                 "argument 'group_size' must be 64, 128 or None, got ", group);
  check_limit(call.scale_upper_bound, DType::kFloat32, op, "scale_upper_bound");
  if (call.static_scale) check_static_scale(call);  // before check_out, which compares their memory
  check_out(call, read);
  if (call.scale) check_dynamic_scale(call, read);
  MEMBOUND_CHECK((call.static_scale == nullptr) != (call.scale == nullptr), InvalidArgument, op,
                 "expected a static scale or an array for dynamic ones");
}

QuantisedResult quantised_result(const Call& call) {
  const int axes = call.values.rank - 1;
  QuantisedResult result{};
  result.out = call.out.data;
  result.out_dtype = call.out.dtype;
  result.out_rows = row_layout(call.out, axes, call.op, "out");
  result.out_col_stride = column_stride(call.out);
  result.static_scale =
      call.static_scale ? static_cast<const float*>(call.static_scale->data) : nullptr;
  result.scale = call.scale ? static_cast<float*>(call.scale->data) : nullptr;
  result.scale_col_stride = 1;
  if (call.scale) {
    result.scale_rows = row_layout(*call.scale, axes, call.op, "scale_out");
    if (call.scale->rank > axes) result.scale_col_stride = column_stride(*call.scale);
  }
  result.group_size = call.group_size == 0 ? call.values.shape[axes] : call.group_size;
  result.scale_upper_bound = static_cast<float>(call.scale_upper_bound);
  return result;
}

}  // namespace membound
