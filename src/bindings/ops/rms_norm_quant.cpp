// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "norm.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rms_norm_quant";

enum Parameter {
  kX,
  kWeight,
  kDtype,
  kScale,
  kGroupSize,
  kScaleUpperBound,
  kEps,
  kWeightOffset,
  kRounding,
  kOut,
  kScaleOut,
  kStream,
};

constexpr const char* kText =
    R"(rms_norm_quant($module, x, weight=None, *, dtype='float8_e4m3fn', scale=None, group_size=None, scale_upper_bound=None, eps=1e-06, weight_offset=0.0, rounding='once', out=None, scale_out=None, stream=None)
--

Root mean square normalisation with a result of 8 bits and its scales, in one pass.

With ``y`` what :func:`rms_norm` returns for the same arguments, bit for bit, and ``limit`` the
largest number of the dtype (448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8), in float32
(float64 for float64)::

    scale = min(max(abs(y).max() / limit, 2**-126), scale_upper_bound)   # or the one given
    out = round(clip(y * (1 / scale), -limit, limit))                    # ties to even

so that ``out * scale`` is about ``y``. A scale is that of its row, or of ``group_size`` columns. NaN
stays NaN, and makes its scale NaN; in int8 it becomes 0. Finite numbers of float64 that no float32 scale
reaches are clipped at its largest.

Args:
    x: ``(..., cols)``, as in :func:`rms_norm`.
    weight: as in :func:`rms_norm`.
    dtype: of the result: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``, or the framework's
        own object of that name. By default that of ``out``, or float8_e4m3fn.
    scale: a static scale: one float32 number, an array of shape ``()`` or ``(1,)`` where ``x`` is.
        None for dynamic ones.
    group_size: how many columns share a dynamic scale: 64 or 128 (the last group of a row may be
        shorter), or None for all of a row.
    scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without a weight.
    rounding: ``"once"`` or ``"before_weight"``, as in :func:`rms_norm`.
    out: where to write: the shape, framework and device of ``x``, one of the dtypes above, with any
        strides. It may not overlap an input. Not for JAX arrays.
    scale_out: where to write dynamic scales: float32, ``x.shape[:-1]``, or with ``group_size`` and
        one axis more for the groups of a row. Any strides: a transposed view, ``base.T``, takes the
        scales column by column, as matrix products with scaled blocks want them.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(out, scale)``, with a static scale ``out`` alone; new C-contiguous arrays of the framework
    and device of ``x`` for those that were not given. NumPy has float8 from ml_dtypes.

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
    >>> x = np.array([[3.0, 4.0], [0.0, -5.0]], np.float32)
    >>> out, scale = mb.rms_norm_quant(x, dtype="int8", eps=12.5)
    >>> out
    array([[  95,  127],
           [   0, -127]], dtype=int8)
    >>> bool(abs(out * scale[:, None] - mb.rms_norm(x, eps=12.5)).max() < 0.005)
    True
    >>> mb.rms_norm_quant(x, dtype="int8", scale=np.array(0.01, np.float32), eps=12.5)
    array([[  60,   80],
           [   0, -100]], dtype=int8)
)";

nb::object call_rms_norm_quant(PyObject* const* values) {
  return call_norm_quant({.op = kName,
                          .x = values[kX],
                          .weight = values[kWeight],
                          .dtype = values[kDtype],
                          .scale = values[kScale],
                          .group_size = values[kGroupSize],
                          .scale_upper_bound = values[kScaleUpperBound],
                          .eps = values[kEps],
                          .weight_offset = values[kWeightOffset],
                          .rounding = values[kRounding],
                          .out = values[kOut],
                          .scale_out = values[kScaleOut],
                          .stream = values[kStream]});
}

}  // namespace

const Op kRmsNormQuant{kName,
                       kText,
                       {"x", "weight", "dtype", "scale", "group_size", "scale_upper_bound", "eps",
                        "weight_offset", "rounding", "out", "scale_out", "stream"},
                       1,
                       2,
                       call_rms_norm_quant};

}  // namespace membound::python
