// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_backward.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "membound/device_buffer.hpp"
#include "ops/rms_norm_generic.hpp"

namespace membound {

namespace {

using Call = NormBackwardCall;

// A gradient may be the very array of an input that comes in rows, where in_place says so.
void check_apart(const TensorView& written, const char* name, const Call& call, bool in_place) {
  const char* op = call.op;
  check_overlap(written, name, *call.dy, "dy", op, in_place);
  check_overlap(written, name, *call.x, call.x_name, op, in_place);
  if (call.dsum) check_overlap(written, name, *call.dsum, "dresidual_out", op, in_place);
  if (call.gate) check_overlap(written, name, *call.gate, "z", op, in_place);
  if (call.weight) check_overlap(written, name, *call.weight, "weight", op, /*in_place=*/false);
  if (call.mean) check_overlap(written, name, *call.mean, "mean", op, /*in_place=*/false);
  check_overlap(written, name, *call.rstd, "rstd", op, /*in_place=*/false);
}

void check_gradient_of_rows(const TensorView& written, const char* name, const Call& call) {
  check_shaped_like(written, name, *call.x, call.x_name, call.op);
  check_writable(written, call.op, name);
  check_apart(written, name, call, /*in_place=*/true);
}

// dweight or dbias; both have the shape of the weight where there is one.
void check_gradient_of_columns(const TensorView& sums, const char* name, const Call& call) {
  const char* op = call.op;
  check_weight(sums, name, *call.x, op, call.x_name);
  if (call.weight) check_leading_shape(sums, *call.weight, call.weight->rank, op, name);
  check_writable(sums, op, name);
  check_apart(sums, name, call, /*in_place=*/false);
  if (call.dx) check_overlap(sums, name, *call.dx, "dx", op, /*in_place=*/false);
  if (call.dresidual) check_overlap(sums, name, *call.dresidual, "dresidual", op, false);
  if (call.dgate) check_overlap(sums, name, *call.dgate, "dz", op, /*in_place=*/false);
}

// What the forward wrote: float64 where one of its inputs was, which may not be among these.
void check_forward_statistic(const ConstTensorView& view, const char* name, const Call& call) {
  const bool wide = view.dtype == DType::kFloat32 || view.dtype == DType::kFloat64;
  const DType dtype = wide ? view.dtype : accumulate_dtype(call.x->dtype);
  check_statistic(view, name, dtype, *call.x, call.x_name, call.op);
}

void check_workspace(const Call& call) {
  const TensorView& workspace = *call.workspace;
  const std::int64_t bytes = norm_backward_workspace(call);
  check_dtype(workspace, DType::kUInt8, call.op, "workspace");
  check_same_device(workspace, *call.x, call.op, "workspace", call.x_name);
  MEMBOUND_CHECK(workspace.rank == 1 && workspace.shape[0] >= bytes &&
                     (workspace.shape[0] <= 1 || workspace.strides[0] == 1) &&
                     reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0,
                 InvalidArgument, call.op, "argument 'workspace' must be ", bytes,
                 " contiguous bytes aligned to 16, got shape ", shape_text(workspace));
}

// What no kernel computes is refused: it would be left out without a word.
void check_form(const Call& call) {
  const char* op = call.op;
  const bool centred = call.mean != nullptr;
  MEMBOUND_CHECK(call.dy && call.x && call.rstd, InvalidArgument, op, "must have 'dy', '",
                 call.x_name, "' and 'rstd', got null");
  MEMBOUND_CHECK(call.gate || !call.dgate, InvalidArgument, op, "must not have 'dz' without 'z'");
  MEMBOUND_CHECK(!call.gate || (!centred && !call.is_added), InvalidArgument, op,
                 "must not have 'z' in an add_ form or with 'mean'");
  MEMBOUND_CHECK(call.is_added || (!call.dsum && !call.dresidual), InvalidArgument, op,
                 "must not have 'dresidual_out' or 'dresidual' but in an add_ form");
  MEMBOUND_CHECK(centred || !call.dbias, InvalidArgument, op,
                 "must not have 'dbias' without 'mean'");
  MEMBOUND_CHECK(!centred || call.options.rounding == Rounding::kOnce, InvalidArgument, op,
                 "must have Rounding::kOnce with 'mean'");
}

void check(const Call& call) {
  const char* op = call.op;
  check_form(call);
  check_rows(*call.x, op, call.x_name);
  check_floating(*call.x, op, call.x_name);
  check_shaped_like(*call.dy, "dy", *call.x, call.x_name, op);
  if (call.dsum) check_shaped_like(*call.dsum, "dresidual_out", *call.x, call.x_name, op);
  if (call.gate) check_shaped_like(*call.gate, "z", *call.x, call.x_name, op);
  if (call.weight) check_weight(*call.weight, "weight", *call.x, op, call.x_name);
  check_finite(call.options.weight_offset, call.x->dtype, op, "weight_offset");
  if (call.mean) check_forward_statistic(*call.mean, "mean", call);
  check_forward_statistic(*call.rstd, "rstd", call);
  if (call.dx) check_gradient_of_rows(*call.dx, "dx", call);
  if (call.dresidual) check_gradient_of_rows(*call.dresidual, "dresidual", call);
  if (call.dx && call.dresidual)
    check_overlap(*call.dresidual, "dresidual", *call.dx, "dx", op, false);
  if (call.dgate) check_gradient_of_rows(*call.dgate, "dz", call);
  if (call.dx && call.dgate) check_overlap(*call.dgate, "dz", *call.dx, "dx", op, false);
  if (call.dweight) {
    MEMBOUND_CHECK(call.weight != nullptr, InvalidArgument, op,
                   "argument 'dweight' must be None without a weight, got an array");
    check_gradient_of_columns(*call.dweight, "dweight", call);
  }
  if (call.dbias) {
    check_view(*call.dbias, op, "dbias");
    MEMBOUND_CHECK(call.weight != nullptr || call.dbias->rank == 1, InvalidArgument, op,
                   "argument 'dbias' must have shape (cols,) without a weight, got ",
                   shape_text(*call.dbias));
    check_gradient_of_columns(*call.dbias, "dbias", call);
  }
  if (call.dweight && call.dbias) {
    check_overlap(*call.dbias, "dbias", *call.dweight, "dweight", op, /*in_place=*/false);
  }
  if (call.workspace) check_workspace(call);
}

RmsNormBackwardProblem make_problem(const Call& call) {
  const char* op = call.op;
  const int axes = call.x->rank - 1;
  const std::int64_t cols = call.x->shape[axes];
  const DType dtype = call.x->dtype;
  return {.dy = rows_of(call.dy, axes, op, "dy"),
          .x = rows_of(call.x, axes, op, call.x_name),
          .dsum = rows_of(call.dsum, axes, op, "dresidual_out"),
          .gate = rows_of(call.gate, axes, op, "z"),
          .mean = rows_of(call.mean, axes, op, "mean"),
          .rstd = rows_of(call.rstd, axes, op, "rstd"),
          .weight = columns_of(call.weight, dtype),
          .dx = rows_of(call.dx, axes, op, "dx"),
          .dresidual = rows_of(call.dresidual, axes, op, "dresidual"),
          .dgate = rows_of(call.dgate, axes, op, "dz"),
          .dweight = columns_of(call.dweight, dtype),
          .dbias = columns_of(call.dbias, dtype),
          .workspace = call.workspace ? call.workspace->data : nullptr,
          .accumulate = accumulate_dtype(call),
          .rounded_to = call.is_added ? call.dy->dtype : dtype,
          .rounding = call.options.rounding,
          .centred = call.mean != nullptr,
          .accumulate_sums = call.options.accumulate,
          .norm_before_gate = call.norm_before_gate,
          .rows = call.x->size() / cols,
          .cols = cols,
          .heads = heads_of(call),
          .weight_offset = call.options.weight_offset};
}

}  // namespace

std::int64_t heads_of(const Call& call) {
  return call.weight != nullptr && call.weight->rank == 2 ? call.weight->shape[0] : 1;
}

std::int64_t norm_backward_workspace(const ConstTensorView& x, std::int64_t heads, bool centred,
                                     bool gated, bool mixed) {
  if (!x.device.is_cuda() || x.rank == 0 || x.size() == 0) return 0;
  const std::int64_t cols = x.shape[x.rank - 1];
  if (mixed) return generic_gradient_workspace(x.size() / cols, cols, heads, centred);
  const auto accumulate_size = static_cast<std::int64_t>(dtype_size(accumulate_dtype(x.dtype)));
  const std::int64_t partials = cuda::tuning::rms_norm_backward_partials(
      x.size() / cols, cols, static_cast<int>(dtype_size(x.dtype)), centred, heads, gated);
  return partials * cols * accumulate_size;
}

// A weight whose heads are not those of x is refused later.
std::int64_t norm_backward_workspace(const Call& call) {
  if (call.dweight == nullptr && call.dbias == nullptr) return 0;
  const ConstTensorView& x = *call.x;
  const std::int64_t heads = heads_of(call);
  const bool fits = x.rank > 2 && heads == x.shape[x.rank - 2];
  return norm_backward_workspace(x, fits ? heads : 1, call.mean != nullptr, call.gate != nullptr,
                                 is_generic(call));
}

std::int64_t rms_norm_backward_workspace(const ConstTensorView& x, std::int64_t heads, bool mixed) {
  return norm_backward_workspace(x, heads, /*centred=*/false, /*gated=*/false, mixed);
}

void norm_backward(const NormBackwardCall& call, StreamView stream) {
  check(call);
  const std::int64_t heads = heads_of(call);
  const bool sums = call.dweight != nullptr || call.dbias != nullptr;
  if (!call.dx && !call.dresidual && !call.dgate && !sums) return;
  if (call.x->size() == 0 && (!sums || call.options.accumulate || heads == 0)) return;
  route(
      call.x->device, call.op,
      [&] {
        const cpu::AllocationCache memory(heads > 1);
        each_head(call, heads, kNormBackwardInputs, kNormBackwardOutputs, [](const Call& one) {
          is_generic(one) ? cpu::rms_norm_backward_generic(make_problem(one))
                          : cpu::rms_norm_backward(make_problem(one));
        });
      },
      [&] {
        DeviceBuffer workspace;
        RmsNormBackwardProblem problem = make_problem(call);
        if (problem.workspace == nullptr && sums) {
          const auto bytes = static_cast<std::size_t>(norm_backward_workspace(call));
          workspace = DeviceBuffer(bytes, call.x->device, stream);
          problem.workspace = workspace.data();
        }
        is_generic(call) ? cuda::rms_norm_backward_generic(problem, stream)
                         : cuda::rms_norm_backward(problem, stream);
      });
}

void rms_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                       const ConstTensorView* weight, const ConstTensorView& rstd,
                       const RmsNormBackwardOptions& options, const TensorView* dx,
                       const TensorView* dweight, const TensorView* workspace, StreamView stream) {
  norm_backward({.op = "rms_norm_backward",
                 .x_name = "x",
                 .dy = &dy,
                 .x = &x,
                 .weight = weight,
                 .rstd = &rstd,
                 .options = options,
                 .dx = dx,
                 .dweight = dweight,
                 .workspace = workspace},
                stream);
}

}  // namespace membound
