// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax.hpp"

#include <algorithm>

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "softmax";

bool adds_to(DType mask, DType x) {
  return is_floating(mask) && (mask == DType::kFloat64) == (x == DType::kFloat64);
}

// The mask with x's shape; broadcast axes have a stride of 0.
ConstTensorView broadcast(const ConstTensorView& mask, const ConstTensorView& x) {
  ConstTensorView whole = x;
  whole.data = mask.data;
  whole.dtype = mask.dtype;
  const int more = x.rank - mask.rank;
  bool fits = more >= 0;
  for (int axis = 0; fits && axis < x.rank; ++axis) {
    const std::int64_t extent = axis < more ? 1 : mask.shape[axis - more];
    fits = extent == 1 || extent == x.shape[axis];
    whole.strides[axis] = extent == 1 ? 0 : mask.strides[axis - more];
  }
  MEMBOUND_CHECK(fits, InvalidArgument, kOp, "argument 'mask' must broadcast to the shape of 'x', ",
                 shape_text(x), ", got ", shape_text(mask));
  return whole;
}

void check_mask(const ConstTensorView& mask, const ConstTensorView& x) {
  MEMBOUND_CHECK(mask.dtype == DType::kBool || adds_to(mask.dtype, x.dtype), TypeMismatch, kOp,
                 "argument 'mask' must be bool or ",
                 x.dtype == DType::kFloat64 ? "float64" : "float16, bfloat16 or float32",
                 " for x of ", dtype_name(x.dtype), ", got ", dtype_name(mask.dtype));
  if (mask.dtype != DType::kBool) check_floating(mask, kOp, "mask");
  check_same_device(mask, x, kOp, "mask", "x");
}

// Sets the causal triangle, clamped to the range in which it makes a difference.
void set_triangle(const ConstTensorView& x, std::int64_t offset, SoftmaxProblem& problem) {
  const std::int64_t queries = x.shape[x.rank - 2], cols = problem.cols;
  if (offset >= cols - 1) return;
  problem.queries = queries;
  problem.causal_offset = std::max(offset, -queries);
}

}  // namespace

void softmax(const ConstTensorView& x, const ConstTensorView* mask, const SoftmaxOptions& options,
             const TensorView& out, StreamView stream) {
  check_rows(x, kOp, "x");
  check_floating(x, kOp, "x");
  if (mask != nullptr) check_mask(*mask, x);
  check_finite(options.scale, x.dtype, kOp, "scale");
  MEMBOUND_CHECK(!options.causal_offset || x.rank >= 2, InvalidArgument, kOp,
                 "argument 'causal_offset' must be None for 'x' of 1 axis, got ",
                 options.causal_offset.value_or(0));
  check_like(out, "out", x, "x", kOp);
  check_writable(out, kOp, "out");
  check_overlap(out, "out", x, "x", kOp, true);
  SoftmaxProblem problem{};
  if (mask != nullptr) {
    const ConstTensorView whole = broadcast(*mask, x);
    check_overlap(out, "out", *mask, "mask", kOp, false);
    problem.mask = whole.data;
    problem.mask_dtype = whole.dtype;
    problem.mask_rows = row_layout(whole, whole.rank - 1, kOp, "mask");
    problem.mask_col_stride = whole.strides[whole.rank - 1];
  }
  if (x.size() == 0) return;
  problem.x = x.data;
  problem.out = out.data;
  problem.dtype = x.dtype;
  problem.scale = options.scale;
  problem.cols = x.shape[x.rank - 1];
  problem.rows = x.size() / problem.cols;
  problem.x_rows = row_layout(x, x.rank - 1, kOp, "x");
  problem.x_col_stride = column_stride(x);
  problem.out_rows = row_layout(out, out.rank - 1, kOp, "out");
  problem.out_col_stride = column_stride(out);
  if (options.causal_offset) set_triangle(x, *options.causal_offset, problem);
  route(x.device, kOp, [&] { cpu::softmax(problem); }, [&] { cuda::softmax(problem, stream); });
}

}  // namespace membound
