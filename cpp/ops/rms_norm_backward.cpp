// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_backward.hpp"

#include "core/memory.hpp"
#include "core/route.hpp"
#include "core/validate.hpp"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "membound/device_buffer.hpp"

namespace membound {

namespace {

using Call = RmsNormBackwardCall;

// Gradients must not overlap inputs, but with in_place may be exactly an input of rows.
void check_disjoint(const TensorView& written, const char* name, const Call& call, bool in_place) {
  const char* op = call.op;
  check_overlap(written, name, call.dy, "dy", op, in_place);
  check_overlap(written, name, call.x, call.x_name, op, in_place);
  if (call.dsum) check_overlap(written, name, *call.dsum, "dresidual_out", op, in_place);
  if (call.gate) check_overlap(written, name, *call.gate, "z", op, in_place);
  if (call.weight) check_overlap(written, name, *call.weight, "weight", op, /*in_place=*/false);
  if (call.mean) check_overlap(written, name, *call.mean, "mean", op, /*in_place=*/false);
  check_overlap(written, name, call.rstd, "rstd", op, /*in_place=*/false);
}

void check_gradient_of_rows(const TensorView& written, const char* name, const Call& call) {
  check_shaped_like(written, name, call.x, call.x_name, call.op);
  check_writable(written, call.op, name);
  check_disjoint(written, name, call, /*in_place=*/true);
}

// dweight or dbias; their shape is that of the weight, if there is one.
void check_gradient_of_columns(const TensorView& sums, const char* name, const Call& call) {
  const char* op = call.op;
  check_weight(sums, name, call.x, op, call.x_name);
  if (call.weight) check_leading_shape(sums, *call.weight, call.weight->rank, op, name);
  check_writable(sums, op, name);
  check_disjoint(sums, name, call, /*in_place=*/false);
  if (call.dx) check_overlap(sums, name, *call.dx, "dx", op, /*in_place=*/false);
  if (call.dresidual) check_overlap(sums, name, *call.dresidual, "dresidual", op, false);
  if (call.dgate) check_overlap(sums, name, *call.dgate, "dz", op, /*in_place=*/false);
}

std::int64_t workspace_of(const Call& call) {
  return gradient_workspace(call.x, call.heads(), call.centred(), call.gate != nullptr,
                            call.is_generic());
}

// mean or rstd of the forward: float64 if one of its inputs was, which may not be among these
// arrays.
void check_forward_statistic(const ConstTensorView& view, const char* name, const Call& call) {
  const bool wide = view.dtype == DType::kFloat32 || view.dtype == DType::kFloat64;
  const DType dtype = wide ? view.dtype : accumulate_dtype(call.x.dtype);
  check_statistic(view, name, dtype, call.x, call.x_name, call.op);
}

void check_workspace(const Call& call) {
  const TensorView& workspace = *call.workspace;
  const std::int64_t bytes = workspace_of(call);
  check_dtype(workspace, DType::kUInt8, call.op, "workspace");
  check_same_device(workspace, call.x, call.op, "workspace", call.x_name);
  MEMBOUND_CHECK(workspace.rank == 1 && workspace.shape[0] >= bytes &&
                     (workspace.shape[0] <= 1 || workspace.strides[0] == 1) &&
                     reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0,
                 InvalidArgument, call.op, "argument 'workspace' must be ", bytes,
                 " contiguous bytes aligned to 16, got shape ", shape_text(workspace));
}

void check(const Call& call) {
  const char* op = call.op;
  check_rows(call.x, op, call.x_name);
  check_floating(call.x, op, call.x_name);
  check_shaped_like(call.dy, "dy", call.x, call.x_name, op);
  if (call.dsum) check_shaped_like(*call.dsum, "dresidual_out", call.x, call.x_name, op);
  if (call.gate) check_shaped_like(*call.gate, "z", call.x, call.x_name, op);
  if (call.weight) check_weight(*call.weight, "weight", call.x, op, call.x_name);
  check_finite(call.options.weight_offset, call.x.dtype, op, "weight_offset");
  if (call.mean) check_forward_statistic(*call.mean, "mean", call);
  check_forward_statistic(call.rstd, "rstd", call);
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
  const int axes = call.x.rank - 1;
  RmsNormBackwardProblem problem;
  problem.dy = call.dy.data;
  problem.x = call.x.data;
  problem.dsum = call.dsum ? call.dsum->data : nullptr;
  problem.gate = call.gate ? call.gate->data : nullptr;
  problem.weight = call.weight ? call.weight->data : nullptr;
  problem.mean = call.mean ? call.mean->data : nullptr;
  problem.rstd = call.rstd.data;
  problem.dx = call.dx ? call.dx->data : nullptr;
  problem.dgate = call.dgate ? call.dgate->data : nullptr;
  problem.dweight = call.dweight ? call.dweight->data : nullptr;
  problem.dbias = call.dbias ? call.dbias->data : nullptr;
  problem.workspace = call.workspace ? call.workspace->data : nullptr;
  problem.dtype = call.x.dtype;
  problem.weight_dtype = call.weight ? call.weight->dtype : call.x.dtype;
  problem.dweight_dtype = call.dweight ? call.dweight->dtype : call.x.dtype;
  problem.dbias_dtype = call.dbias ? call.dbias->dtype : call.x.dtype;
  problem.rounding = call.options.rounding;
  problem.accumulate = call.options.accumulate;
  problem.centred = call.centred();
  problem.norm_before_gate = call.norm_before_gate;
  problem.cols = call.x.shape[axes];
  problem.rows = call.x.size() / problem.cols;
  problem.dy_rows = row_layout(call.dy, axes, op, "dy");
  problem.x_rows = row_layout(call.x, axes, op, call.x_name);
  if (call.mean) problem.mean_rows = row_layout(*call.mean, axes, op, "mean");
  problem.rstd_rows = row_layout(call.rstd, axes, op, "rstd");
  if (call.dsum) problem.dsum_rows = row_layout(*call.dsum, axes, op, "dresidual_out");
  if (call.dx) problem.dx_rows = row_layout(*call.dx, axes, op, "dx");
  if (call.gate) problem.gate_rows = row_layout(*call.gate, axes, op, "z");
  if (call.dgate) problem.dgate_rows = row_layout(*call.dgate, axes, op, "dz");
  problem.dy_col_stride = column_stride(call.dy);
  problem.x_col_stride = column_stride(call.x);
  problem.dsum_col_stride = call.dsum ? column_stride(*call.dsum) : 1;
  problem.dx_col_stride = call.dx ? column_stride(*call.dx) : 1;
  problem.gate_col_stride = call.gate ? column_stride(*call.gate) : 1;
  problem.dgate_col_stride = call.dgate ? column_stride(*call.dgate) : 1;
  problem.weight_stride = call.weight ? column_stride(*call.weight) : 1;
  problem.dweight_stride = call.dweight ? column_stride(*call.dweight) : 1;
  problem.dbias_stride = call.dbias ? column_stride(*call.dbias) : 1;
  problem.heads = call.heads();
  problem.weight_head_stride = call.weight ? head_stride(*call.weight) : 0;
  problem.dweight_head_stride = call.dweight ? head_stride(*call.dweight) : 0;
  problem.dbias_head_stride = call.dbias ? head_stride(*call.dbias) : 0;
  problem.weight_offset = call.options.weight_offset;
  return problem;
}

}  // namespace

std::int64_t gradient_workspace(const ConstTensorView& x, std::int64_t heads, bool centred,
                                bool gated, bool mixed) {
  if (!x.device.is_cuda() || x.rank == 0 || x.size() == 0) return 0;
  const std::int64_t cols = x.shape[x.rank - 1];
  if (mixed) return generic_gradient_workspace(x.size() / cols, cols, heads, centred);
  const auto accumulate_size = static_cast<std::int64_t>(dtype_size(accumulate_dtype(x.dtype)));
  const std::int64_t partials = cuda::tuning::rms_norm_backward_partials(
      x.size() / cols, cols, static_cast<int>(dtype_size(x.dtype)), centred, heads, gated);
  return partials * cols * accumulate_size;
}

std::int64_t rms_norm_backward_workspace(const ConstTensorView& x, std::int64_t heads, bool mixed) {
  return gradient_workspace(x, heads, /*centred=*/false, /*gated=*/false, mixed);
}

void run_rms_norm_backward(const RmsNormBackwardCall& call, StreamView stream) {
  check(call);
  const bool sums = call.dweight != nullptr || call.dbias != nullptr;
  if (!call.dx && !call.dresidual && !call.dgate && !sums) return;
  if (call.x.size() == 0 && (!sums || call.options.accumulate || call.heads() == 0)) return;
  route(
      call.x.device, call.op,
      [&] {
        const cpu::AllocationCache memory(call.heads() > 1);
        each_head(call, [](const Call& one) {
          one.is_generic() ? cpu::rms_norm_backward_generic(generic_norm_problem(one))
                           : cpu::rms_norm_backward(make_problem(one));
        });
      },
      [&] {
        DeviceBuffer workspace;
        const auto with_workspace = [&](auto problem) {
          if (problem.workspace == nullptr && sums) {
            const auto bytes = static_cast<std::size_t>(workspace_of(call));
            workspace = DeviceBuffer(bytes, call.x.device, stream);
            problem.workspace = workspace.data();
          }
          return problem;
        };
        if (call.is_generic()) {
          cuda::rms_norm_backward_generic(with_workspace(generic_norm_problem(call)), stream);
        } else {
          cuda::rms_norm_backward(with_workspace(make_problem(call)), stream);
        }
      });
}

void rms_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                       const ConstTensorView* weight, const ConstTensorView& rstd,
                       const RmsNormBackwardOptions& options, const TensorView* dx,
                       const TensorView* dweight, const TensorView* workspace, StreamView stream) {
  run_rms_norm_backward({.op = "rms_norm_backward",
                         .x_name = "x",
                         .dy = dy,
                         .x = x,
                         .weight = weight,
                         .rstd = rstd,
                         .options = options,
                         .dx = dx,
                         .dweight = dweight,
                         .workspace = workspace},
                        stream);
}

}  // namespace membound
