// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/heads.hpp"
#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/stream.hpp"
#include "ops/rms_norm_generic.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols. dsum is the second gradient of
// add_rms_norm_backward, to be added to dx. With `centred` it is the gradient of layer_norm, with a
// gate that of rms_norm_gated. At least one gradient is wanted.
struct RmsNormBackwardProblem {
  const void* dy;
  const void* x;
  const void* dsum;    // null: none
  const void* gate;    // null: none
  const void* weight;  // null: none
  const void* mean;    // centred only; accumulate_dtype(dtype)
  const void* rstd;    // accumulate_dtype(dtype)
  void* dx;            // null: not wanted; may be dy, x, dsum or gate
  void* dgate;         // likewise
  void* dweight;       // null: not wanted
  void* dbias;         // null: not wanted, or not centred
  void* workspace;  // GPU with dweight or dbias: the bytes that the op's _workspace function gives
  DType dtype;      // of dy, x, dsum, gate, dx and dgate
  DType weight_dtype;  // equal to dtype if there is no weight
  DType dweight_dtype;
  DType dbias_dtype;
  Rounding rounding;  // kOnce when centred
  bool accumulate;
  bool centred;
  bool norm_before_gate;
  std::int64_t rows;  // 0 only with dweight or dbias, which are then zero
  std::int64_t cols;  // at least 1
  RowLayout dy_rows, x_rows, dsum_rows, dx_rows, mean_rows, rstd_rows;  // in elements
  RowLayout gate_rows, dgate_rows;
  std::int64_t dy_col_stride, x_col_stride, dsum_col_stride, dx_col_stride;  // 1 when cols is 1
  std::int64_t gate_col_stride, dgate_col_stride;
  std::int64_t weight_stride, dweight_stride, dbias_stride;
  // Row r uses the weight of head r % heads and adds to its dweight and dbias. 1 on the CPU, which
  // handles one head at a time.
  std::int64_t heads;
  std::int64_t weight_head_stride, dweight_head_stride, dbias_head_stride;
  double weight_offset;

  // True for a weight of x's dtype and all gradients of rows: what GPU kernels with low register
  // pressure handle.
  bool is_common() const {
    return weight != nullptr && weight_dtype == dtype && dx != nullptr &&
           (gate == nullptr || dgate != nullptr);
  }
  // The same, and no options.
  bool is_plain() const {
    return is_common() && weight_offset == 0.0 && rounding == Rounding::kOnce;
  }
};

// The arguments of the user's call; op and x_name are for error texts. Absent ones are null.
struct RmsNormBackwardCall {
  const char* op;
  const char* x_name;
  const ConstTensorView& dy;
  const ConstTensorView* dsum = nullptr;  // "dresidual_out"
  const ConstTensorView& x;
  const ConstTensorView* gate = nullptr;  // "z"
  const ConstTensorView* weight = nullptr;
  const ConstTensorView* mean = nullptr;
  const ConstTensorView& rstd;
  RmsNormBackwardOptions options;
  bool norm_before_gate = true;
  const TensorView* dx = nullptr;
  const TensorView* dresidual = nullptr;  // dx in its own dtype
  const TensorView* dgate = nullptr;      // "dz"
  const TensorView* dweight = nullptr;
  const TensorView* dbias = nullptr;
  const TensorView* workspace = nullptr;

  bool is_added = false;  // add_rms_norm or add_layer_norm

  bool centred() const { return mean != nullptr; }
  // True if only the generic kernels support the call; and the dtype of their sums.
  bool is_generic() const;
  DType accumulate() const;
  // The number of heads of a weight of (heads, cols); 1 for (cols,).
  std::int64_t heads() const {
    return weight != nullptr && weight->rank == 2 ? weight->shape[0] : 1;
  }
};
void run_rms_norm_backward(const RmsNormBackwardCall& call, StreamView stream);
GenericNormBackwardProblem generic_norm_problem(const RmsNormBackwardCall& call);

// Calls body(call) for each head alone, with parameters of (cols,).
template <class Body>
void each_head(const RmsNormBackwardCall& call, Body body) {
  const std::int64_t heads = call.heads();
  if (heads == 1) return body(call);
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto dsum = one_head(call.dsum, -2, head), gate = one_head(call.gate, -2, head);
    const auto weight = one_head(call.weight, -2, head);
    const auto mean = one_head_of_rows(call.mean, call.x.rank, head);
    const auto rstd = one_head_of_rows(&call.rstd, call.x.rank, head);
    const auto dx = one_head(call.dx, -2, head), dgate = one_head(call.dgate, -2, head);
    const auto dresidual = one_head(call.dresidual, -2, head);
    const auto dweight = one_head(call.dweight, -2, head), dbias = one_head(call.dbias, -2, head);
    body({.op = call.op,
          .x_name = call.x_name,
          .dy = select(call.dy, -2, head),
          .dsum = dsum,
          .x = select(call.x, -2, head),
          .gate = gate,
          .weight = weight,
          .mean = mean,
          .rstd = *static_cast<const ConstTensorView*>(rstd),
          .options = call.options,
          .norm_before_gate = call.norm_before_gate,
          .dx = dx,
          .dresidual = dresidual,
          .dgate = dgate,
          .dweight = dweight,
          .dbias = dbias,
          .workspace = call.workspace,
          .is_added = call.is_added});
  }
}
// Bytes of workspace. heads: of the weight; mixed: for calls that are is_generic.
std::int64_t gradient_workspace(const ConstTensorView& x, std::int64_t heads, bool centred,
                                bool gated, bool mixed);

namespace cpu {
void rms_norm_backward(const RmsNormBackwardProblem& problem);
}
namespace cuda {
void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
