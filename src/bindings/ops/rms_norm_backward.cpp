// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm_backward";

enum Parameter {
  kDy,
  kX,
  kWeight,
  kRstd,
  kWeightOffset,
  kRounding,
  kNormalizedShape,
  kDx,
  kDweight,
  kNeedDx,
  kNeedDweight,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(rms_norm_backward($module, dy, x, weight, rstd, *, weight_offset=0.0, rounding='once', normalized_shape=None, dx=None, dweight=None, need_dx=True, need_dweight=True, accumulate=False, stream=None)
--

The gradients of :func:`rms_norm`, in one pass.

With ``h = x * rstd`` and ``g = dy * (weight + weight_offset)``, by the chain rule:
``dx = rstd * (g - h * mean(g * h))`` and ``dweight = sum(dy * h)`` over all rows.

Args:
    dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
    x: ``(..., cols)``, what the forward read.
    weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
        there is no dweight.
    rstd: what the forward returned with ``return_rstd=True``: ``x.shape[:-1]``, float32 (float64
        for float64).
    weight_offset: the forward's.
    rounding: the forward's. With ``"before_weight"`` dweight takes ``h`` rounded to the dtype of
        ``x``, as the forward did; rounding itself has the derivative 1.
    normalized_shape: the forward's; needed for a weight of two axes.
    dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy`` or
        ``x`` itself, but may not overlap an input in part. Not for JAX arrays.
    dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
    need_dx: whether dx is wanted.
    need_dweight: whether dweight is wanted.
    accumulate: add to ``dweight``, which must be given, in place of writing it.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(dx, dweight)``, None in place of what is not wanted. New arrays are C-contiguous, of the
    framework and device of ``dy``; a new dweight has the dtype of ``weight``. Sums are float32
    (float64 for float64) in a tree fixed by rows, columns and dtype: every run gives the same
    bits, on any number of CPU threads or GPU multiprocessors.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
    ValueError: a shape, stride, device, overlap or number does not fit; ``accumulate=True``
        without ``dweight``; an array for a gradient that is not wanted.
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``.
    membound.CudaError: CUDA is not there, or a launch failed.
    MemoryError: no memory on the GPU to sum dweight in.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, weight = np.array([[3.0, 4.0], [4.0, -3.0]]), np.array([1.0, 2.0])
    >>> y, rstd = mb.rms_norm(x, weight, eps=12.5, return_rstd=True)
    >>> dx, dweight = mb.rms_norm_backward(np.ones_like(x), x, weight, rstd)
    >>> dx.round(3).tolist()
    [[0.068, 0.224], [0.232, 0.376]]
    >>> dweight.round(3).tolist()
    [1.4, 0.2]
)";

nb::object call_rms_norm_backward(PyObject* const* values) {
  return call_norm_backward({.op = kName,
                             .x_name = "x",
                             .dy = values[kDy],
                             .x = values[kX],
                             .weight = values[kWeight],
                             .rstd = values[kRstd],
                             .weight_offset = values[kWeightOffset],
                             .rounding = values[kRounding],
                             .normalized_shape = values[kNormalizedShape],
                             .dx = values[kDx],
                             .dweight = values[kDweight],
                             .need_dx = values[kNeedDx],
                             .need_dweight = values[kNeedDweight],
                             .accumulate = values[kAccumulate],
                             .stream = values[kStream]});
}

}  // namespace

const Op kRmsNormBackward{
    kName,
    kText,
    {"dy", "x", "weight", "rstd", "weight_offset", "rounding", "normalized_shape", "dx", "dweight",
     "need_dx", "need_dweight", "accumulate", "stream"},
    4,
    4,
    call_rms_norm_backward};

}  // namespace membound::python
