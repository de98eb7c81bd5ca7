// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "add_rms_norm_quant";

enum Parameter {
  kX,
  kResidual,
  kWeight,
  kDtype,
  kScale,
  kGroupSize,
  kScaleUpperBound,
  kEps,
  kWeightOffset,
  kRounding,
  kOut,
  kResidualOut,
  kScaleOut,
  kStream,
};

constexpr const char* kText =
    R"(add_rms_norm_quant($module, x, residual, weight=None, *, dtype='float8_e4m3fn', scale=None, group_size=None, scale_upper_bound=None, eps=1e-06, weight_offset=0.0, rounding='once', out=None, residual_out=None, scale_out=None, stream=None)
--

Residual addition and root mean square normalisation with a result of 8 bits, in one pass.

What :func:`rms_norm_quant` is to :func:`rms_norm`, this is to :func:`add_rms_norm`: ``out`` and its
scales are the quantisation of what that one returns first, bit for bit, and ``residual_out`` is
``x + residual``, as there.

Args:
    x: ``(..., cols)``, as in :func:`rms_norm`.
    residual: the shape, dtype, framework and device of ``x``, with any strides.
    weight: as in :func:`rms_norm`.
    dtype: of ``out``, as in :func:`rms_norm_quant`.
    scale: a static scale, as in :func:`rms_norm_quant`.
    group_size: 64, 128 or None, as in :func:`rms_norm_quant`.
    scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
    rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
    out: where to write the norm, as in :func:`rms_norm_quant`.
    residual_out: where to write the sum: the shape, dtype, framework and device of ``x``. It may be
        ``x`` or ``residual`` itself, but may not overlap one in part. Not for JAX arrays.
    scale_out: where to write dynamic scales, as in :func:`rms_norm_quant`.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(out, residual_out, scale)``, with a static scale ``(out, residual_out)``; new C-contiguous
    arrays of the framework and device of ``x`` for those that were not given.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken;
        or the framework has no arrays of the dtype.
    ValueError: a shape, stride, device, overlap or number does not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded: call this function
        under ``torch.no_grad()`` or pass ``x.detach()``. It has no gradient.
    membound.CudaError: CUDA is not there, or a launch failed.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([[1.0, 2.0]], np.float32)
    >>> residual = np.array([[2.0, 2.0]], np.float32)
    >>> out, total, scale = mb.add_rms_norm_quant(x, residual, dtype="int8", eps=12.5)
    >>> out, total
    (array([[ 95, 127]], dtype=int8), array([[3., 4.]], dtype=float32))
)";

nb::object call_add_rms_norm_quant(PyObject* const* values) {
  return call_norm_quant({.op = kName,
                          .x = values[kX],
                          .residual = values[kResidual],
                          .weight = values[kWeight],
                          .dtype = values[kDtype],
                          .scale = values[kScale],
                          .group_size = values[kGroupSize],
                          .scale_upper_bound = values[kScaleUpperBound],
                          .eps = values[kEps],
                          .weight_offset = values[kWeightOffset],
                          .rounding = values[kRounding],
                          .out = values[kOut],
                          .residual_out = values[kResidualOut],
                          .scale_out = values[kScaleOut],
                          .stream = values[kStream]});
}

}  // namespace

const Op kAddRmsNormQuant{
    kName,
    kText,
    {"x", "residual", "weight", "dtype", "scale", "group_size", "scale_upper_bound", "eps",
     "weight_offset", "rounding", "out", "residual_out", "scale_out", "stream"},
    2,
    3,
    call_add_rms_norm_quant};

}  // namespace membound::python
