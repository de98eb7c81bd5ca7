// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "add_layer_norm_backward";

enum Parameter {
  kDy,
  kDresidualOut,
  kResidualOut,
  kWeight,
  kMean,
  kRstd,
  kWeightOffset,
  kNormalizedShape,
  kDx,
  kDresidual,
  kDweight,
  kDbias,
  kNeedDx,
  kNeedDresidual,
  kNeedDweight,
  kNeedDbias,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(add_layer_norm_backward($module, dy, dresidual_out, residual_out, weight, mean, rstd, *, weight_offset=0.0, normalized_shape=None, dx=None, dresidual=None, dweight=None, dbias=None, need_dx=True, need_dresidual=False, need_dweight=True, need_dbias=True, accumulate=False, stream=None)
--

The gradients of :func:`add_layer_norm`, in one pass.

``x`` and ``residual`` have one gradient in common, since only their sum counts:
``dx = dresidual_out + `` what :func:`layer_norm_backward` gives for ``x = residual_out``.

Args:
    dy: the gradient of ``out``.
    dresidual_out: the gradient of ``residual_out``: the shape, framework and device of ``dy``, in
        any floating dtype and with any strides; None where none came.
    residual_out: what the forward returned.
    weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
        there is no dweight.
    mean: what the forward returned with ``return_stats=True``.
    rstd: likewise.
    weight_offset: the forward's.
    normalized_shape: the forward's; needed for a weight of two axes.
    dx: where to write dx; it may be ``dy``, ``dresidual_out`` or ``residual_out`` itself. Not for
        JAX arrays.
    dresidual: where to write the gradient of ``residual``: the numbers of dx in the dtype of
        ``residual_out``; as ``dx``, and not its array.
    dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
    dbias: where to write dbias: likewise. It needs no weight, and is ``(cols,)`` without one.
    need_dx: whether dx is wanted.
    need_dresidual: whether dresidual is wanted, beside dx: where ``residual`` has a dtype of its
        own.
    need_dweight: whether dweight is wanted.
    need_dbias: whether dbias is wanted; False where the forward had no bias.
    accumulate: as in :func:`layer_norm_backward`.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(dx, dweight, dbias)``, as :func:`layer_norm_backward` and with its promises.

Raises:
    What :func:`layer_norm_backward` raises. A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, residual, weight = np.array([[1.0, 2.0]]), np.array([[0.0, 3.0]]), np.array([1.0, 2.0])
    >>> y, total, mean, rstd = mb.add_layer_norm(x, residual, weight, eps=12.0, return_stats=True)
    >>> dx, dweight, dbias = mb.add_layer_norm_backward(
    ...     np.ones_like(y), np.ones_like(total), total, weight, mean, rstd)
    >>> dx.tolist(), dweight.tolist(), dbias.tolist()
    ([[0.90625, 1.09375]], [-0.5, 0.5], [1.0, 1.0])
)";

nb::object call_add_layer_norm_backward(PyObject* const* values) {
  return call_norm_backward({.op = kName,
                             .x_name = "residual_out",
                             .dy = values[kDy],
                             .dresidual_out = values[kDresidualOut],
                             .x = values[kResidualOut],
                             .weight = values[kWeight],
                             .mean = values[kMean],
                             .rstd = values[kRstd],
                             .weight_offset = values[kWeightOffset],
                             .normalized_shape = values[kNormalizedShape],
                             .dx = values[kDx],
                             .dresidual = values[kDresidual],
                             .dweight = values[kDweight],
                             .dbias = values[kDbias],
                             .need_dx = values[kNeedDx],
                             .need_dresidual = values[kNeedDresidual],
                             .need_dweight = values[kNeedDweight],
                             .need_dbias = values[kNeedDbias],
                             .accumulate = values[kAccumulate],
                             .stream = values[kStream]});
}

}  // namespace

const Op kAddLayerNormBackward{
    kName,
    kText,
    {"dy", "dresidual_out", "residual_out", "weight", "mean", "rstd", "weight_offset",
     "normalized_shape", "dx", "dresidual", "dweight", "dbias", "need_dx", "need_dresidual",
     "need_dweight", "need_dbias", "accumulate", "stream"},
    6,
    6,
    call_add_layer_norm_backward};

}  // namespace membound::python
