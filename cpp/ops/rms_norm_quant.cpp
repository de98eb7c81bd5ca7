// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include <cmath>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

using Call = RmsNormQuantCall;

bool is_quantised(DType dtype) {
  return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2 || dtype == DType::kInt8;
}

// The norm of the call. Its out are the codes, whose dtype the norm's own checks do not take.
RmsNormCall norm_of(const Call& call) {
  return {.op = call.op,
          .x = call.x,
          .residual = call.residual,
          .weight = call.weight,
          .options = {call.options.eps, call.options.weight_offset, call.options.rounding},
          .out = call.out,
          .residual_out = call.residual_out};
}

std::int64_t group_size(const Call& call) {
  const std::int64_t cols = call.x.shape[call.x.rank - 1];
  return call.options.group_size == 0 ? cols : call.options.group_size;
}

// Nothing that is read may change on the way.
void check_written(const TensorView& written, const char* name, const Call& call, bool in_place) {
  const char* op = call.op;
  check_writable(written, op, name);
  check_overlap(written, name, call.x, "x", op, in_place);
  if (call.residual) check_overlap(written, name, *call.residual, "residual", op, in_place);
  if (call.weight) check_overlap(written, name, *call.weight, "weight", op, false);
  if (call.static_scale) check_overlap(written, name, *call.static_scale, "scale", op, false);
}

void check_out(const Call& call) {
  const char* op = call.op;
  MEMBOUND_CHECK(is_quantised(call.out.dtype), TypeMismatch, op,
                 "argument 'out' must be float8_e4m3fn, float8_e5m2 or int8, got ",
                 dtype_name(call.out.dtype));
  check_leading_shape(call.out, call.x, call.x.rank, op, "out");
  check_same_device(call.out, call.x, op, "out", "x");
  check_written(call.out, "out", call, /*in_place=*/false);
}

void check_static_scale(const Call& call) {
  const ConstTensorView& scale = *call.static_scale;
  check_dtype(scale, DType::kFloat32, call.op, "scale");
  MEMBOUND_CHECK(scale.rank <= 1 && scale.size() == 1, InvalidArgument, call.op,
                 "argument 'scale' must have shape () or (1,), got ", shape_text(scale));
  check_same_device(scale, call.x, call.op, "scale", "x");
  check_floating(scale, call.op, "scale");
  MEMBOUND_CHECK(call.options.group_size == 0, InvalidArgument, call.op,
                 "argument 'group_size' must be None with a static scale, got ",
                 call.options.group_size);
  MEMBOUND_CHECK(std::isinf(call.options.scale_upper_bound), InvalidArgument, call.op,
                 "argument 'scale_upper_bound' must be None with a static scale, got ",
                 call.options.scale_upper_bound);
}

void check_dynamic_scale(const Call& call) {
  const TensorView& scale = *call.scale;
  const char* op = call.op;
  ConstTensorView expected = call.x;
  expected.dtype = DType::kFloat32;
  if (call.options.group_size == 0) {
    --expected.rank;
  } else {
    std::int64_t& groups = expected.shape[expected.rank - 1];
    groups = (groups + call.options.group_size - 1) / call.options.group_size;
  }
  check_dtype(scale, DType::kFloat32, op, "scale_out");
  check_leading_shape(scale, expected, expected.rank, op, "scale_out");
  check_same_device(scale, call.x, op, "scale_out", "x");
  check_floating(scale, op, "scale_out");
  check_written(scale, "scale_out", call, /*in_place=*/false);
  check_overlap(scale, "scale_out", call.out, "out", op, /*in_place=*/false);
}

void check(const Call& call) {
  const char* op = call.op;
  check_norm_inputs(norm_of(call));
  const std::int64_t group = call.options.group_size;
  MEMBOUND_CHECK(group == 0 || group == 64 || group == 128, InvalidArgument, op,
                 "argument 'group_size' must be 64, 128 or None, got ", group);
  MEMBOUND_CHECK(static_cast<float>(call.options.scale_upper_bound) > 0.0f, InvalidArgument, op,
                 "argument 'scale_upper_bound' must be above 0, got ",
                 call.options.scale_upper_bound);
  check_out(call);
  if (call.static_scale) check_static_scale(call);
  if (call.scale) check_dynamic_scale(call);
  MEMBOUND_CHECK((call.static_scale == nullptr) != (call.scale == nullptr), InvalidArgument, op,
                 "expected a static scale or an array for dynamic ones");
  if (call.residual == nullptr) return;
  const TensorView& sum = *call.residual_out;
  check_like(sum, "residual_out", call.x, "x", op);
  check_written(sum, "residual_out", call, /*in_place=*/true);
  check_overlap(sum, "residual_out", call.out, "out", op, /*in_place=*/false);
  if (call.scale) {
    check_overlap(*call.scale, "scale_out", sum, "residual_out", op, /*in_place=*/false);
  }
}

RmsNormQuantProblem make_problem(const Call& call) {
  RmsNormQuantProblem problem;
  problem.norm = rms_norm_problem(norm_of(call));
  problem.norm.out = nullptr;
  const int axes = call.x.rank - 1;
  problem.out = call.out.data;
  problem.out_dtype = call.out.dtype;
  problem.out_rows = problem.norm.out_rows;
  problem.out_col_stride = problem.norm.out_col_stride;
  problem.static_scale =
      call.static_scale ? static_cast<const float*>(call.static_scale->data) : nullptr;
  problem.scale = call.scale ? static_cast<float*>(call.scale->data) : nullptr;
  problem.scale_col_stride = 1;
  if (call.scale) {
    problem.scale_rows = row_layout(*call.scale, axes, call.op, "scale_out");
    if (call.scale->rank > axes) problem.scale_col_stride = column_stride(*call.scale);
  }
  problem.group_size = group_size(call);
  problem.scale_upper_bound = static_cast<float>(call.options.scale_upper_bound);
  return problem;
}

// As each_head of the norm: for each head alone, whose weight is (cols,) then.
template <class Body>
void each_head(const Call& call, Body body) {
  const std::int64_t heads = norm_of(call).heads();
  if (heads == 1) return body(call);
  const int scale_axis = call.options.group_size == 0 ? -1 : -2;
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto residual = one_head(call.residual, -2, head),
               weight = one_head(call.weight, -2, head);
    const auto residual_out = one_head(call.residual_out, -2, head);
    const auto scale = one_head(call.scale, scale_axis, head);
    body({.op = call.op,
          .x = select(call.x, -2, head),
          .residual = residual,
          .weight = weight,
          .options = call.options,
          .out = select(call.out, -2, head),
          .residual_out = residual_out,
          .static_scale = call.static_scale,
          .scale = scale});
  }
}

}  // namespace

void run_rms_norm_quant(const Call& call, StreamView stream) {
  check(call);
  if (call.x.size() == 0) return;
  route(
      call.x.device, call.op,
      [&] { each_head(call, [](const Call& one) { cpu::rms_norm_quant(make_problem(one)); }); },
      [&] { cuda::rms_norm_quant(make_problem(call), stream); });
}

void rms_norm_quant(const ConstTensorView& x, const ConstTensorView* weight,
                    const RmsNormQuantOptions& options, const TensorView& out,
                    const ConstTensorView* static_scale, const TensorView* scale,
                    StreamView stream) {
  run_rms_norm_quant({.op = "rms_norm_quant",
                      .x = x,
                      .weight = weight,
                      .options = options,
                      .out = out,
                      .static_scale = static_scale,
                      .scale = scale},
                     stream);
}

}  // namespace membound
