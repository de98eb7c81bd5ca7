// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// The gradients of gated activations by the names of activation_aliases.cpp.
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

// The parameters in order, with alpha or without.
template <bool kHasAlpha>
struct Backward {
  enum Parameter {
    kDy,
    kGate,
    kUp,
    kPacking,
    kAlpha,
    kLimit = kAlpha + kHasAlpha,
    kUpOffset,
    kRowScale,
    kDgate,
    kDup,
    kNeedDgate,
    kNeedDup,
    kStream
  };
};

template <bool kHasAlpha>
nb::object backward(const char* op, Activation kind, PyObject* const* values) {
  using P = Backward<kHasAlpha>;
  return call_gated_activation_backward({.op = op,
                                         .gate = values[P::kGate],
                                         .up = values[P::kUp],
                                         .packing = values[P::kPacking],
                                         .alpha = kHasAlpha ? values[P::kAlpha] : nullptr,
                                         .limit = values[P::kLimit],
                                         .up_offset = values[P::kUpOffset],
                                         .row_scale = values[P::kRowScale],
                                         .stream = values[P::kStream],
                                         .default_kind = kind},
                                        {.dy = values[P::kDy],
                                         .dgate = values[P::kDgate],
                                         .dup = values[P::kDup],
                                         .need_dgate = values[P::kNeedDgate],
                                         .need_dup = values[P::kNeedDup]});
}

constexpr const char* kSiluAndMulBackwardText =
    R"(silu_and_mul_backward($module, dy, gate, up=None, *, packing='halves', alpha=1.0, limit=None, up_offset=0.0, row_scale=None, dgate=None, dup=None, need_dgate=True, need_dup=True, stream=None)
--

The gradients of :func:`silu_and_mul`, as :func:`gated_activation_backward`.

Args:
    dy: the gradient of ``out``: ``(..., cols)``.
    gate: what the forward read.
    up: what the forward read.
    packing: the forward's.
    alpha: the forward's.
    limit: the forward's.
    up_offset: the forward's.
    row_scale: the forward's.
    dgate: as in :func:`gated_activation_backward`.
    dup: as in :func:`gated_activation_backward`.
    need_dgate: as in :func:`gated_activation_backward`.
    need_dup: as in :func:`gated_activation_backward`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation_backward` returns.

Raises:
    What :func:`gated_activation_backward` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
    >>> dgate, dup = mb.silu_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
    >>> mb.silu_and_mul_backward(dy, gate_up).round(3)
    array([[ 2.783,  0.289,  0.731, -0.269]])
)";

constexpr const char* kGeluAndMulBackwardText =
    R"(gelu_and_mul_backward($module, dy, gate, up=None, *, packing='halves', limit=None, up_offset=0.0, row_scale=None, dgate=None, dup=None, need_dgate=True, need_dup=True, stream=None)
--

The gradients of :func:`gelu_and_mul`, as :func:`gated_activation_backward`.

Args:
    dy: the gradient of ``out``: ``(..., cols)``.
    gate: what the forward read.
    up: what the forward read.
    packing: the forward's.
    limit: the forward's.
    up_offset: the forward's.
    row_scale: the forward's.
    dgate: as in :func:`gated_activation_backward`.
    dup: as in :func:`gated_activation_backward`.
    need_dgate: as in :func:`gated_activation_backward`.
    need_dup: as in :func:`gated_activation_backward`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation_backward` returns.

Raises:
    What :func:`gated_activation_backward` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
    >>> dgate, dup = mb.gelu_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
    >>> mb.gelu_and_mul_backward(dy, gate_up).round(3)
    array([[ 3.25 , -0.333,  0.841, -0.159]])
)";

constexpr const char* kGeluTanhAndMulBackwardText =
    R"(gelu_tanh_and_mul_backward($module, dy, gate, up=None, *, packing='halves', limit=None, up_offset=0.0, row_scale=None, dgate=None, dup=None, need_dgate=True, need_dup=True, stream=None)
--

The gradients of :func:`gelu_tanh_and_mul`, as :func:`gated_activation_backward`.

Args:
    dy: the gradient of ``out``: ``(..., cols)``.
    gate: what the forward read.
    up: what the forward read.
    packing: the forward's.
    limit: the forward's.
    up_offset: the forward's.
    row_scale: the forward's.
    dgate: as in :func:`gated_activation_backward`.
    dup: as in :func:`gated_activation_backward`.
    need_dgate: as in :func:`gated_activation_backward`.
    need_dup: as in :func:`gated_activation_backward`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation_backward` returns.

Raises:
    What :func:`gated_activation_backward` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
    >>> dgate, dup = mb.gelu_tanh_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
    >>> mb.gelu_tanh_and_mul_backward(dy, gate_up).round(3)
    array([[ 3.249, -0.332,  0.841, -0.159]])
)";

constexpr const char* kSigmoidAndMulBackwardText =
    R"(sigmoid_and_mul_backward($module, dy, gate, up=None, *, packing='halves', alpha=1.0, limit=None, up_offset=0.0, row_scale=None, dgate=None, dup=None, need_dgate=True, need_dup=True, stream=None)
--

The gradients of :func:`sigmoid_and_mul`, as :func:`gated_activation_backward`.

Args:
    dy: the gradient of ``out``: ``(..., cols)``.
    gate: what the forward read.
    up: what the forward read.
    packing: the forward's.
    alpha: the forward's.
    limit: the forward's.
    up_offset: the forward's.
    row_scale: the forward's.
    dgate: as in :func:`gated_activation_backward`.
    dup: as in :func:`gated_activation_backward`.
    need_dgate: as in :func:`gated_activation_backward`.
    need_dup: as in :func:`gated_activation_backward`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation_backward` returns.

Raises:
    What :func:`gated_activation_backward` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up, dy = np.array([[1.0, -1.0, 3.0, 4.0]]), np.ones((1, 2))
    >>> dgate, dup = mb.sigmoid_and_mul_backward(dy, gate_up[:, :2], gate_up[:, 2:])
    >>> mb.sigmoid_and_mul_backward(dy, gate_up).round(3)
    array([[0.59 , 0.786, 0.731, 0.269]])
)";

}  // namespace

const Op kSiluAndMulBackward{"silu_and_mul_backward",
                             kSiluAndMulBackwardText,
                             {"dy", "gate", "up", "packing", "alpha", "limit", "up_offset",
                              "row_scale", "dgate", "dup", "need_dgate", "need_dup", "stream"},
                             2,
                             3,
                             [](PyObject* const* values) {
                               return backward<true>("silu_and_mul_backward", Activation::kSilu,
                                                     values);
                             }};

const Op kGeluAndMulBackward{"gelu_and_mul_backward",
                             kGeluAndMulBackwardText,
                             {"dy", "gate", "up", "packing", "limit", "up_offset", "row_scale",
                              "dgate", "dup", "need_dgate", "need_dup", "stream"},
                             2,
                             3,
                             [](PyObject* const* values) {
                               return backward<false>("gelu_and_mul_backward", Activation::kGelu,
                                                      values);
                             }};

const Op kGeluTanhAndMulBackward{"gelu_tanh_and_mul_backward",
                                 kGeluTanhAndMulBackwardText,
                                 {"dy", "gate", "up", "packing", "limit", "up_offset", "row_scale",
                                  "dgate", "dup", "need_dgate", "need_dup", "stream"},
                                 2,
                                 3,
                                 [](PyObject* const* values) {
                                   return backward<false>("gelu_tanh_and_mul_backward",
                                                          Activation::kGeluTanh, values);
                                 }};

const Op kSigmoidAndMulBackward{"sigmoid_and_mul_backward",
                                kSigmoidAndMulBackwardText,
                                {"dy", "gate", "up", "packing", "alpha", "limit", "up_offset",
                                 "row_scale", "dgate", "dup", "need_dgate", "need_dup", "stream"},
                                2,
                                3,
                                [](PyObject* const* values) {
                                  return backward<true>("sigmoid_and_mul_backward",
                                                        Activation::kSigmoid, values);
                                }};

}  // namespace membound::python
