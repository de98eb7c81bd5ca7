// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "gated_activation_backward";

enum Parameter {
  kDy,
  kGate,
  kUp,
  kKind,
  kPacking,
  kAlpha,
  kLimit,
  kUpOffset,
  kRowScale,
  kDgate,
  kDup,
  kNeedDgate,
  kNeedDup,
  kStream,
};

constexpr const char* kText =
    R"(gated_activation_backward($module, dy, gate, up=None, *, kind='silu', packing='halves', alpha=None, limit=None, up_offset=0.0, row_scale=None, dgate=None, dup=None, need_dgate=True, need_dup=True, stream=None)
--

The gradients of :func:`gated_activation`, recomputed from its inputs in one pass.

By the chain rule, with ``g = min(gate, limit)`` and ``u = clamp(up, -limit, limit) + up_offset``:
``dgate = dy * row_scale * act'(g) * u``, 0 where ``gate > limit``, and
``dup = dy * row_scale * act(g)``, 0 where ``abs(up) > limit``; in float32 (float64 for float64),
each rounded once. ``relu`` and ``relu2`` have the slope 0 at 0; of ``situ`` ``dup`` has the slope of the
soft cap for a factor. The gradient of ``row_scale`` is not computed: it
is the sum over a row of ``dy`` times what the forward gives without it.

Args:
    dy: the gradient of ``out``: ``(..., cols)``, with any strides.
    gate: what the forward read.
    up: what the forward read.
    kind: the forward's.
    packing: the forward's.
    alpha: the forward's.
    limit: the forward's.
    up_offset: the forward's.
    row_scale: the forward's.
    dgate: where to write the gradient of ``gate``, packed where ``gate`` is: its shape, dtype,
        framework and device. It may be ``gate`` itself (in place); with ``up``, or alone, it may
        also be ``dy`` or ``up``. It may not overlap them otherwise. Not for JAX arrays.
    dup: where to write the gradient of ``up``: likewise, and not the array of dgate.
    need_dgate: whether dgate is wanted. True without ``up``.
    need_dup: whether dup is wanted. True without ``up``.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    With ``up`` the pair ``(dgate, dup)``, None in place of what is not wanted. Without, one array
    of the shape of ``gate``, packed like it.

Raises:
    What :func:`gated_activation` raises, and
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
    >>> dgate, dup = mb.gated_activation_backward(dy, gate_up[:, :2], gate_up[:, 2:])
    >>> mb.gated_activation_backward(dy, gate_up).round(3)
    array([[ 2.783,  0.289,  0.731, -0.269]])
)";

nb::object call(PyObject* const* values) {
  return call_gated_activation_backward({.op = kName,
                                         .gate = values[kGate],
                                         .up = values[kUp],
                                         .kind = values[kKind],
                                         .packing = values[kPacking],
                                         .alpha = values[kAlpha],
                                         .limit = values[kLimit],
                                         .up_offset = values[kUpOffset],
                                         .row_scale = values[kRowScale],
                                         .stream = values[kStream]},
                                        {.dy = values[kDy],
                                         .dgate = values[kDgate],
                                         .dup = values[kDup],
                                         .need_dgate = values[kNeedDgate],
                                         .need_dup = values[kNeedDup]});
}

}  // namespace

const Op kGatedActivationBackward{
    kName,
    kText,
    {"dy", "gate", "up", "kind", "packing", "alpha", "limit", "up_offset", "row_scale", "dgate",
     "dup", "need_dgate", "need_dup", "stream"},
    2,
    3,
    call};

}  // namespace membound::python
