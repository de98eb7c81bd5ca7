// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The quantised gated activation by its name in serving libraries.
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "silu_and_mul_quant";

constexpr const char* kText =
    R"(silu_and_mul_quant($module, gate, up=None, *, packing='halves', dtype='float8_e4m3fn', scale=None, group_size=None, scale_upper_bound=None, alpha=1.0, limit=None, up_offset=0.0, row_scale=None, out=None, scale_out=None, stream=None)
--

SwiGLU with a result of 8 bits, as :func:`gated_activation_quant` with ``kind="silu"``.

Args:
    gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
    up: the shape, dtype, framework and device of ``gate``.
    packing: as in :func:`gated_activation_quant`.
    dtype: as in :func:`gated_activation_quant`.
    scale: as in :func:`gated_activation_quant`.
    group_size: as in :func:`gated_activation_quant`.
    scale_upper_bound: as in :func:`gated_activation_quant`.
    alpha: as in :func:`gated_activation_quant`.
    limit: as in :func:`gated_activation_quant`.
    up_offset: as in :func:`gated_activation_quant`.
    row_scale: as in :func:`gated_activation_quant`.
    out: as in :func:`gated_activation_quant`.
    scale_out: as in :func:`gated_activation_quant`.
    stream: as in :func:`gated_activation_quant`.

Returns:
    What :func:`gated_activation_quant` returns.

Raises:
    What :func:`gated_activation_quant` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]], np.float32)
    >>> out, scale = mb.silu_and_mul_quant(gate_up, dtype="int8")
    >>> out, scale.round(4)
    (array([[127, -62]], dtype=int8), array([0.0173], dtype=float32))
)";

nb::object call(PyObject* const* values) {
  enum {
    kGate,
    kUp,
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
    kStream
  };
  return call_gated_activation_quant({.op = kName,
                                      .gate = values[kGate],
                                      .up = values[kUp],
                                      .packing = values[kPacking],
                                      .alpha = values[kAlpha],
                                      .limit = values[kLimit],
                                      .up_offset = values[kUpOffset],
                                      .row_scale = values[kRowScale],
                                      .stream = values[kStream],
                                      .default_kind = Activation::kSilu},
                                     {.op = kName,
                                      .dtype = values[kDtype],
                                      .scale = values[kScale],
                                      .group_size = values[kGroupSize],
                                      .scale_upper_bound = values[kScaleUpperBound],
                                      .out = values[kOut],
                                      .scale_out = values[kScaleOut]});
}

}  // namespace

const Op kSiluAndMulQuant{
    kName,
    kText,
    {"gate", "up", "packing", "dtype", "scale", "group_size", "scale_upper_bound", "alpha", "limit",
     "up_offset", "row_scale", "out", "scale_out", "stream"},
    1,
    2,
    call};

}  // namespace membound::python
