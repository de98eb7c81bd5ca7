// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm_gated_backward";

enum Parameter {
  kDy,
  kX,
  kZ,
  kWeight,
  kRstd,
  kNormBeforeGate,
  kWeightOffset,
  kRounding,
  kNormalizedShape,
  kDx,
  kDz,
  kDweight,
  kNeedDx,
  kNeedDz,
  kNeedDweight,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(rms_norm_gated_backward($module, dy, x, z, weight, rstd, *, norm_before_gate=True, weight_offset=0.0, rounding='once', normalized_shape=None, dx=None, dz=None, dweight=None, need_dx=True, need_dz=True, need_dweight=True, accumulate=False, stream=None)
--

The gradients of :func:`rms_norm_gated`, in one pass.

By the chain rule, with ``s = 1 / (1 + exp(-z))`` and ``silu'(z) = s * (1 + z * (1 - s))``:

- ``norm_before_gate=True``: ``dx`` and ``dweight`` are what :func:`rms_norm_backward` gives for
  ``dy * silu(z)``, and ``dz = dy * rms_norm(x) * silu'(z)``.
- ``norm_before_gate=False``: with ``u = x * silu(z)``, ``du`` and ``dweight`` are what
  :func:`rms_norm_backward` gives for ``dy`` and ``u``; ``dx = du * silu(z)``,
  ``dz = du * x * silu'(z)``.

Args:
    dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
    x: ``(..., cols)``, what the forward read.
    z: the gate that the forward read.
    weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
        there is no dweight.
    rstd: what the forward returned with ``return_rstd=True``: ``x.shape[:-1]``, float32 (float64
        for float64).
    norm_before_gate: the forward's.
    weight_offset: the forward's.
    rounding: the forward's. With ``"before_weight"`` dweight and dz take what the forward rounded;
        rounding itself has the derivative 1.
    normalized_shape: the forward's; needed for a weight of two axes.
    dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy``, ``x``
        or ``z`` itself, but may not overlap an input in part. Not for JAX arrays.
    dz: where to write dz: likewise, and not the array of dx.
    dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
    need_dx: whether dx is wanted.
    need_dz: whether dz is wanted.
    need_dweight: whether dweight is wanted.
    accumulate: add to ``dweight``, which must be given, in place of writing it.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(dx, dz, dweight)``, None in place of what is not wanted, as in :func:`rms_norm_backward`:
    every run gives the same bits.

Raises:
    What :func:`rms_norm_backward` raises.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, z = np.array([[3.0, 4.0], [4.0, -3.0]]), np.array([[1.0, 2.0], [0.0, -1.0]])
    >>> weight = np.array([1.0, 2.0])
    >>> y, rstd = mb.rms_norm_gated(x, z, weight, eps=12.5, return_rstd=True)
    >>> dx, dz, dweight = mb.rms_norm_gated_backward(np.ones_like(x), x, z, weight, rstd)
    >>> dx.round(3).tolist()
    [[-0.049, 0.444], [-0.026, -0.088]]
    >>> dz.round(3).tolist(), dweight.round(3).tolist()
    ([[0.557, 1.745], [0.4, -0.087]], [0.439, 1.571])
)";

nb::object call_rms_norm_gated_backward(PyObject* const* values) {
  return call_norm_backward({.op = kName,
                             .x_name = "x",
                             .dy = values[kDy],
                             .x = values[kX],
                             .z = values[kZ],
                             .weight = values[kWeight],
                             .rstd = values[kRstd],
                             .norm_before_gate = values[kNormBeforeGate],
                             .weight_offset = values[kWeightOffset],
                             .rounding = values[kRounding],
                             .normalized_shape = values[kNormalizedShape],
                             .dx = values[kDx],
                             .dz = values[kDz],
                             .dweight = values[kDweight],
                             .need_dx = values[kNeedDx],
                             .need_dz = values[kNeedDz],
                             .need_dweight = values[kNeedDweight],
                             .accumulate = values[kAccumulate],
                             .stream = values[kStream]});
}

}  // namespace

const Op kRmsNormGatedBackward{
    kName,
    kText,
    {"dy", "x", "z", "weight", "rstd", "norm_before_gate", "weight_offset", "rounding",
     "normalized_shape", "dx", "dz", "dweight", "need_dx", "need_dz", "need_dweight", "accumulate",
     "stream"},
    5,
    5,
    call_rms_norm_gated_backward};

}  // namespace membound::python
