// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "layer_norm_backward";

enum Parameter {
  kDy,
  kX,
  kWeight,
  kMean,
  kRstd,
  kWeightOffset,
  kNormalizedShape,
  kDx,
  kDweight,
  kDbias,
  kNeedDx,
  kNeedDweight,
  kNeedDbias,
  kAccumulate,
  kStream,
};

constexpr const char* kText =
    R"(layer_norm_backward($module, dy, x, weight, mean, rstd, *, weight_offset=0.0, normalized_shape=None, dx=None, dweight=None, dbias=None, need_dx=True, need_dweight=True, need_dbias=True, accumulate=False, stream=None)
--

The gradients of :func:`layer_norm`, in one pass.

With ``h = (x - mean) * rstd`` and ``g = dy * (weight + weight_offset)``, by the chain rule:
``dx = rstd * (g - mean(g) - h * mean(g * h))``, where these means are over the last axis, and
``dweight = sum(dy * h)``, ``dbias = sum(dy)`` over all rows.

Args:
    dy: the gradient of ``out``: the shape, dtype, framework and device of ``x``, with any strides.
    x: ``(..., cols)``, what the forward read.
    weight: ``(cols,)`` or ``(heads, cols)``, what the forward read; None for no weight, and then
        there is no dweight.
    mean: what the forward returned with ``return_stats=True``: ``x.shape[:-1]``, float32 (float64
        for float64).
    rstd: likewise.
    weight_offset: the forward's.
    normalized_shape: the forward's; needed for a weight of two axes.
    dx: where to write dx: the shape, dtype, framework and device of ``x``. It may be ``dy`` or
        ``x`` itself, but may not overlap an input in part. Not for JAX arrays.
    dweight: where to write dweight: the shape of ``weight`` in any floating dtype; no overlap.
    dbias: where to write dbias: likewise. It needs no weight, and is ``(cols,)`` without one.
    need_dx: whether dx is wanted.
    need_dweight: whether dweight is wanted.
    need_dbias: whether dbias is wanted; False where the forward had no bias.
    accumulate: add to ``dweight`` and ``dbias`` in place of writing them; each one that is wanted
        must be given.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(dx, dweight, dbias)``, None in place of what is not wanted. New arrays are C-contiguous, of
    the framework and device of ``dy``; new dweight and dbias have the dtype of ``weight``, and
    without a weight dbias has that of ``dy``. Sums are float32 (float64 for float64) in a tree
    fixed by rows, columns and dtype: every run gives the same bits, on any number of CPU threads or
    GPU multiprocessors.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken.
    ValueError: a shape, stride, device, overlap or number does not fit; ``accumulate=True``
        without an array to add to; an array for a gradient that is not wanted.
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        does not do: call it under ``torch.no_grad()`` or pass ``x.detach()``.
    membound.CudaError: CUDA is not there, or a launch failed.
    MemoryError: no memory on the GPU to sum dweight and dbias in.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, weight = np.array([[1.0, 5.0], [9.0, 3.0]]), np.array([1.0, 2.0])
    >>> y, mean, rstd = mb.layer_norm(x, weight, eps=12.0, return_stats=True)
    >>> dx, dweight, dbias = mb.layer_norm_backward(np.ones_like(x), x, weight, mean, rstd)
    >>> dx.round(3).tolist()
    [[-0.094, 0.094], [-0.062, 0.062]]
    >>> dweight.round(3).tolist(), dbias.tolist()
    ([0.155, -0.155], [2.0, 2.0])
)";

nb::object call_layer_norm_backward(PyObject* const* values) {
  return call_norm_backward({.op = kName,
                             .x_name = "x",
                             .dy = values[kDy],
                             .x = values[kX],
                             .weight = values[kWeight],
                             .mean = values[kMean],
                             .rstd = values[kRstd],
                             .weight_offset = values[kWeightOffset],
                             .normalized_shape = values[kNormalizedShape],
                             .dx = values[kDx],
                             .dweight = values[kDweight],
                             .dbias = values[kDbias],
                             .need_dx = values[kNeedDx],
                             .need_dweight = values[kNeedDweight],
                             .need_dbias = values[kNeedDbias],
                             .accumulate = values[kAccumulate],
                             .stream = values[kStream]});
}

}  // namespace

const Op kLayerNormBackward{
    kName,
    kText,
    {"dy", "x", "weight", "mean", "rstd", "weight_offset", "normalized_shape", "dx", "dweight",
     "dbias", "need_dx", "need_dweight", "need_dbias", "accumulate", "stream"},
    5,
    5,
    call_layer_norm_backward};

}  // namespace membound::python
