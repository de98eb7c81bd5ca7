// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rope_backward.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"
#include "membound/device_buffer.hpp"
#include "ops/rope.hpp"

namespace membound {

namespace {

constexpr const char* kOp = "rope_backward";

void check_dfreqs(const TensorView& dfreqs, const RopeCall& call, const ConstTensorView* q,
                  const ConstTensorView* k) {
  MEMBOUND_CHECK(call.angles.freqs, InvalidArgument, kOp,
                 "argument 'dfreqs' goes with freqs alone: tables have no gradient");
  MEMBOUND_CHECK(q, InvalidArgument, kOp, "argument 'q' must be given for dfreqs, got None");
  MEMBOUND_CHECK((k == nullptr) == (call.k == nullptr), InvalidArgument, kOp,
                 "argument 'k' must be given for dfreqs with 'dk', and only then");
  check_like(*q, "q", call.q, "dq", kOp);
  if (k) check_like(*k, "k", *call.k, "dk", kOp);
  check_same_device(dfreqs, call.q, kOp, "dfreqs", "dq");
  MEMBOUND_CHECK(dfreqs.dtype == DType::kFloat32 || dfreqs.dtype == DType::kFloat64, TypeMismatch,
                 kOp, "argument 'dfreqs' must be float32 or float64, got ",
                 dtype_name(dfreqs.dtype));
  MEMBOUND_CHECK(call.angles.freqs->rank == 1, InvalidArgument, kOp,
                 "argument 'freqs' must have one axis for dfreqs: angles have no gradient, got ",
                 shape_text(*call.angles.freqs));
  check_leading_shape(dfreqs, *call.angles.freqs, 1, kOp, "dfreqs");
  check_floating(dfreqs, kOp, "dfreqs");
  check_writable(dfreqs, kOp, "dfreqs");
}

// Arrays that are read after something was written must not overlap it.
void check_all_disjoint(const TensorView& dfreqs, const RopeCall& call, const ConstTensorView* q,
                        const ConstTensorView* k) {
  const auto check_disjoint = [](const TensorView* written, const char* name,
                                 const ConstTensorView* other, const char* other_name) {
    if (written && other) {
      check_rope_overlap(*written, name, *other, other_name, kOp, /*in_place=*/false);
    }
  };
  for (const auto& [read, name] : {std::pair{q, "q"}, std::pair{k, "k"}}) {
    check_disjoint(&call.out, "dq_out", read, name);
    check_disjoint(call.k_out, "dk_out", read, name);
    check_disjoint(&dfreqs, "dfreqs", read, name);
  }
  const ConstTensorView out = call.out;
  check_disjoint(&dfreqs, "dfreqs", &call.q, "dq");
  check_disjoint(&dfreqs, "dfreqs", call.k, "dk");
  check_disjoint(&dfreqs, "dfreqs", &out, "dq_out");
  if (call.k_out) {
    const ConstTensorView k_out = *call.k_out;
    check_disjoint(&dfreqs, "dfreqs", &k_out, "dk_out");
  }
  check_disjoint(&dfreqs, "dfreqs", call.angles.freqs, "freqs");
  check_disjoint(&dfreqs, "dfreqs", call.angles.position_ids, "position_ids");
  check_disjoint(&dfreqs, "dfreqs", call.angles.seqlen_offsets, "seqlen_offsets");
  check_disjoint(&dfreqs, "dfreqs", call.angles.cu_seqlens, "cu_seqlens");
}

void check_workspace(const TensorView& workspace, const RopeCall& call, std::int64_t rotary_dim) {
  check_same_device(workspace, call.q, kOp, "workspace", "dq");
  const std::int64_t bytes = rope_backward_workspace(rotary_dim);
  MEMBOUND_CHECK(workspace.dtype == DType::kUInt8 && workspace.rank == 1 &&
                     workspace.shape[0] >= bytes && workspace.strides[0] == 1 &&
                     reinterpret_cast<std::uintptr_t>(workspace.data) % 16 == 0,
                 InvalidArgument, kOp, "argument 'workspace' must be ", bytes,
                 " bytes of uint8 and more, aligned to 16, got shape ", shape_text(workspace));
}

}  // namespace

std::int64_t rope_backward_workspace(std::int64_t rotary_dim) {
  return kRopeParts * (rotary_dim / 2) * static_cast<std::int64_t>(sizeof(double));
}

void rope_backward(const ConstTensorView& dq, const ConstTensorView* dk, const ConstTensorView* q,
                   const ConstTensorView* k, const RopeAngles& angles, const RopeOptions& options,
                   const TensorView& dq_out, const TensorView* dk_out, const TensorView* dfreqs,
                   const TensorView* workspace, StreamView stream) {
  RopeOptions back = options;
  back.inverse = !options.inverse;
  const RopeCall call{kOp, "dq", "dk", "dq_out", "dk_out", dq, dk, angles, back, dq_out, dk_out};
  const RopeProblem problem = rope_problem(call);
  if (dfreqs == nullptr) return run_rope(problem, dq.device, kOp, stream);
  check_dfreqs(*dfreqs, call, q, k);
  check_all_disjoint(*dfreqs, call, q, k);
  if (workspace) check_workspace(*workspace, call, problem.rotary_dim);
  RopeFrequenciesProblem frequencies{problem,
                                     {q->data, k ? k->data : nullptr},
                                     {},
                                     dfreqs->data,
                                     dfreqs->dtype,
                                     dfreqs->strides[0],
                                     nullptr};
  frequencies.x_strides[0] = rope_strides(*q, options.layout);
  if (k) frequencies.x_strides[1] = rope_strides(*k, options.layout);
  DeviceBuffer allocated;  // allocated before anything is written
  if (workspace) {
    frequencies.workspace = workspace->data;
  } else {
    const std::int64_t bytes = rope_backward_workspace(problem.rotary_dim);
    allocated = DeviceBuffer(static_cast<std::size_t>(bytes), dq.device, stream);
    frequencies.workspace = allocated.data();
  }
  run_rope(problem, dq.device, kOp, stream);
  route(
      dq.device, kOp, [&] { cpu::rope_frequencies(frequencies); },
      [&] { cuda::rope_frequencies(frequencies, stream); });
}

}  // namespace membound
