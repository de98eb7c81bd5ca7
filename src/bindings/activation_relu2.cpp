// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// relu2, the kind that models also use without an up to multiply by.
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kRelu2Text =
    R"(relu2($module, gate, *, row_scale=None, out=None, stream=None)
--

``max(gate, 0) ** 2``, as :func:`gated_activation` with ``kind="relu2"`` and nothing to multiply by.

Args:
    gate: ``(..., cols)``, float16, bfloat16, float32 or float64, with any strides.
    row_scale: as in :func:`gated_activation`.
    out: where to write: the shape, dtype, framework and device of ``gate``, or ``gate`` itself.
    stream: as in :func:`gated_activation`.

Returns:
    ``out``, or a new C-contiguous array of the framework, shape, dtype and device of ``gate``.

Raises:
    What :func:`gated_activation` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x = np.array([-1.0, 2.0, 3.0])
    >>> mb.relu2(x)
    array([0., 4., 9.])
    >>> mb.relu2(x, out=x) is x
    True
)";

constexpr const char* kRelu2BackwardText =
    R"(relu2_backward($module, dy, gate, *, row_scale=None, dgate=None, stream=None)
--

The gradient of :func:`relu2`: ``2 * max(gate, 0) * dy * row_scale``.

Args:
    dy: the gradient of ``out``: the shape, dtype, framework and device of ``gate``.
    gate: what the forward read.
    row_scale: the forward's.
    dgate: where to write: likewise, or ``gate`` or ``dy`` itself.
    stream: as in :func:`gated_activation`.

Returns:
    ``dgate``, or a new C-contiguous array.

Raises:
    What :func:`gated_activation_backward` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> x, dy = np.array([-1.0, 2.0, 3.0]), np.ones(3)
    >>> mb.relu2_backward(dy, x)
    array([0., 4., 6.])
    >>> mb.relu2_backward(dy, x, dgate=x) is x
    True
)";

nb::object call_relu2(PyObject* const* values) {
  enum { kGate, kRowScale, kOut, kStream };
  return call_gated_activation({.op = "relu2",
                                .gate = values[kGate],
                                .row_scale = values[kRowScale],
                                .stream = values[kStream],
                                .default_kind = Activation::kRelu2,
                                .ungated = true},
                               values[kOut]);
}

nb::object call_relu2_backward(PyObject* const* values) {
  enum { kDy, kGate, kRowScale, kDgate, kStream };
  return call_gated_activation_backward({.op = "relu2_backward",
                                         .gate = values[kGate],
                                         .row_scale = values[kRowScale],
                                         .stream = values[kStream],
                                         .default_kind = Activation::kRelu2,
                                         .ungated = true},
                                        {.dy = values[kDy], .dgate = values[kDgate]});
}

}  // namespace

const Op kRelu2{"relu2", kRelu2Text, {"gate", "row_scale", "out", "stream"}, 1, 1, call_relu2};
const Op kRelu2Backward{
    "relu2_backward",   kRelu2BackwardText, {"dy", "gate", "row_scale", "dgate", "stream"}, 2, 2,
    call_relu2_backward};

}  // namespace membound::python
