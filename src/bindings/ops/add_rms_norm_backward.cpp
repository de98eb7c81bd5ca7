// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "add_rms_norm_backward";

enum Parameter {
  kDy,
  kDresidualOut,
  kResidualOut,
  kWeight,
  kRstd,
  kWeightOffset,
  kRounding,
  kNormalizedShape,
  kDx,
  kDresidual,
  kDweight,
  kNeedDx,
  kNeedDresidual,
  kNeedDweight,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(add_rms_norm_backward($module, dy, dresidual_out, residual_out, weight, rstd, *, weight_offset=0.0, rounding='once', normalized_shape=None, dx=None, dresidual=None, dweight=None, need_dx=True, need_dresidual=False, need_dweight=True, accumulate=False, stream=None)
--

The gradients of :func:`add_rms_norm`, in one pass.

``x`` and ``residual`` have one gradient in common, since only their sum counts:
``dx = dresidual_out + `` what :func:`rms_norm_backward` gives for ``x = residual_out``.

Args:
    dy: the gradient of ``out``.
    dresidual_out: the gradient of ``residual_out``: the shape, framework and device of ``dy``, in
        any floating dtype and with any strides; None where none came.
    residual_out: what the forward returned.
    weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
        there is no dweight.
    rstd: what the forward returned with ``return_rstd=True``.
    weight_offset: the forward's.
    rounding: the forward's, as in :func:`rms_norm_backward`.
    normalized_shape: the forward's; needed for a weight of two axes.
    dx: where to write dx; it may be ``dy``, ``dresidual_out`` or ``residual_out`` itself. Not for
        JAX arrays.
    dresidual: where to write the gradient of ``residual``: the numbers of dx in the dtype of
        ``residual_out``; as ``dx``, and not its array.
    dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
    need_dx: whether dx is wanted.
    need_dresidual: whether dresidual is wanted, beside dx: where ``residual`` has a dtype of its
        own.
    need_dweight: whether dweight is wanted.
    accumulate: add to ``dweight``, which must be given, in place of writing it.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(dx, dweight)``, as :func:`rms_norm_backward` and with its promises.

Raises:
    What :func:`rms_norm_backward` raises. A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, residual, weight = np.array([[1.0, 2.0]]), np.array([[2.0, 2.0]]), np.array([1.0, 2.0])
    >>> y, total, rstd = mb.add_rms_norm(x, residual, weight, eps=12.5, return_rstd=True)
    >>> dx, dweight = mb.add_rms_norm_backward(
    ...     np.ones_like(y), np.ones_like(total), total, weight, rstd)
    >>> dx.round(3).tolist(), dweight.round(3).tolist()
    ([[1.068, 1.224]], [0.6, 0.8])
)";

nb::object call_add_rms_norm_backward(PyObject* const* values) {
  return call_norm_backward({.op = kName,
                             .x_name = "residual_out",
                             .dy = values[kDy],
                             .dresidual_out = values[kDresidualOut],
                             .x = values[kResidualOut],
                             .weight = values[kWeight],
                             .rstd = values[kRstd],
                             .weight_offset = values[kWeightOffset],
                             .rounding = values[kRounding],
                             .normalized_shape = values[kNormalizedShape],
                             .dx = values[kDx],
                             .dresidual = values[kDresidual],
                             .dweight = values[kDweight],
                             .need_dx = values[kNeedDx],
                             .need_dresidual = values[kNeedDresidual],
                             .need_dweight = values[kNeedDweight],
                             .accumulate = values[kAccumulate],
                             .stream = values[kStream]});
}

}  // namespace

const Op kAddRmsNormBackward{
    kName,
    kText,
    {"dy", "dresidual_out", "residual_out", "weight", "rstd", "weight_offset", "rounding",
     "normalized_shape", "dx", "dresidual", "dweight", "need_dx", "need_dresidual", "need_dweight",
     "accumulate", "stream"},
    5,
    5,
    call_add_rms_norm_backward};

}  // namespace membound::python
