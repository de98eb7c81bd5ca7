// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "gated_activation_quant";

enum Parameter {
  kGate,
  kUp,
  kKind,
  kPacking,
  kDtype,
  kScale,
  kGroupSize,
  kScaleUpperBound,
  kAlpha,
  kLimit,
  kUpOffset,
  kRowScale,
  kOut,
  kScaleOut,
  kStream,
};

constexpr const char* kText =
    R"(gated_activation_quant($module, gate, up=None, *, kind='silu', packing='halves', dtype='float8_e4m3fn', scale=None, group_size=None, scale_upper_bound=None, alpha=None, limit=None, up_offset=0.0, row_scale=None, out=None, scale_out=None, stream=None)
--

A gated activation with a result of 8 bits and its scales, in one pass.

With ``y`` what :func:`gated_activation` returns for ``gate`` and ``up`` converted to float32
(float64 as they are), bit for bit and on the same device, and ``limit`` the largest number of the
dtype (448 for float8_e4m3fn, 57344 for float8_e5m2, 127 for int8), in float32 (float64 for
float64)::

    scale = min(max(abs(y).max() / limit, 2**-126), scale_upper_bound)   # or the one given
    out = round(clip(y * (1 / scale), -limit, limit))                    # ties to even

so that ``out * scale`` is about ``y``, which is not rounded to the dtype of ``gate`` on the way. A
scale is that of its row, or of ``group_size`` columns. NaN stays NaN, and makes its scale NaN; in
int8 it becomes 0. Finite numbers of float64 that no float32 scale
reaches are clipped at its largest.

Args:
    gate: as in :func:`gated_activation`: float16, bfloat16, float32 or float64, any strides.
    up: as in :func:`gated_activation`.
    kind: the function of the gate, as in :func:`gated_activation`.
    packing: how ``gate`` holds gate and up, as in :func:`gated_activation`.
    dtype: of the result: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``, or the framework's
        own object of that name. By default that of ``out``, or float8_e4m3fn.
    scale: a static scale: one float32 number, an array of shape ``()`` or ``(1,)`` where ``gate``
        is. None for dynamic ones.
    group_size: how many columns share a dynamic scale: 64 or 128 (the last group of a row may be
        shorter), or None for all of a row.
    scale_upper_bound: the largest dynamic scale; above 0, or None for no bound.
    alpha: as in :func:`gated_activation`.
    limit: as in :func:`gated_activation`.
    up_offset: as in :func:`gated_activation`.
    row_scale: as in :func:`gated_activation`.
    out: where to write: ``(..., cols)`` of the framework and device of ``gate``, one of the dtypes
        above, with any strides. It may not overlap an input. Not for JAX arrays.
    scale_out: where to write dynamic scales: float32, the shape of ``out`` without its last axis,
        or with ``group_size`` and one axis more for the groups of a row. Any strides: a transposed
        view, ``base.T``, takes the scales column by column.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``(out, scale)``, with a static scale ``out`` alone; new C-contiguous arrays of the framework
    and device of ``gate`` for those that were not given. NumPy has float8 from ml_dtypes.

Raises:
    TypeError: an argument is no array or of another framework, or has a dtype that is not taken;
        or the framework has no arrays of the dtype.
    ValueError: a shape, stride, device, overlap or number does not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded: call this function
        under ``torch.no_grad()`` or pass ``gate.detach()``. It has no gradient.
    membound.CudaError: CUDA is not there, or a launch failed.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]], np.float32)
    >>> out, scale = mb.gated_activation_quant(gate_up, dtype="int8")
    >>> out, scale.round(4)
    (array([[127, -62]], dtype=int8), array([0.0173], dtype=float32))
    >>> bool(abs(out * scale[:, None] - mb.gated_activation(gate_up)).max() < 0.01)
    True
    >>> mb.gated_activation_quant(gate_up, dtype="int8", scale=np.array(0.02, np.float32))
    array([[110, -54]], dtype=int8)
)";

nb::object call(PyObject* const* values) {
  return call_gated_activation_quant({.op = kName,
                                      .gate = values[kGate],
                                      .up = values[kUp],
                                      .kind = values[kKind],
                                      .packing = values[kPacking],
                                      .alpha = values[kAlpha],
                                      .limit = values[kLimit],
                                      .up_offset = values[kUpOffset],
                                      .row_scale = values[kRowScale],
                                      .stream = values[kStream]},
                                     {.op = kName,
                                      .dtype = values[kDtype],
                                      .scale = values[kScale],
                                      .group_size = values[kGroupSize],
                                      .scale_upper_bound = values[kScaleUpperBound],
                                      .out = values[kOut],
                                      .scale_out = values[kScaleOut]});
}

}  // namespace

const Op kGatedActivationQuant{
    kName,
    kText,
    {"gate", "up", "kind", "packing", "dtype", "scale", "group_size", "scale_upper_bound", "alpha",
     "limit", "up_offset", "row_scale", "out", "scale_out", "stream"},
    1,
    2,
    call};

}  // namespace membound::python
