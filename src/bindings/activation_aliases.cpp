// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Gated activations by their names in serving libraries.
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

// The parameters in order, with alpha or without.
template <bool kHasAlpha>
struct Forward {
  enum Parameter {
    kGate,
    kUp,
    kPacking,
    kAlpha,
    kLimit = kAlpha + kHasAlpha,
    kUpOffset,
    kRowScale,
    kOut,
    kStream
  };
};
template <bool kHasAlpha>
nb::object forward(const char* op, Activation kind, PyObject* const* values) {
  using P = Forward<kHasAlpha>;
  return call_gated_activation({.op = op,
                                .gate = values[P::kGate],
                                .up = values[P::kUp],
                                .packing = values[P::kPacking],
                                .alpha = kHasAlpha ? values[P::kAlpha] : nullptr,
                                .limit = values[P::kLimit],
                                .up_offset = values[P::kUpOffset],
                                .row_scale = values[P::kRowScale],
                                .stream = values[P::kStream],
                                .default_kind = kind},
                               values[P::kOut]);
}

constexpr const char* kSiluAndMulText =
    R"(silu_and_mul($module, gate, up=None, *, packing='halves', alpha=1.0, limit=None, up_offset=0.0, row_scale=None, out=None, stream=None)
--

SwiGLU: ``silu(gate) * up``, as :func:`gated_activation` with ``kind="silu"``.

Args:
    gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
    up: the shape, dtype, framework and device of ``gate``.
    packing: as in :func:`gated_activation`.
    alpha: as in :func:`gated_activation`.
    limit: as in :func:`gated_activation`.
    up_offset: as in :func:`gated_activation`.
    row_scale: as in :func:`gated_activation`.
    out: as in :func:`gated_activation`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation` returns.

Raises:
    What :func:`gated_activation` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
    >>> mb.silu_and_mul(gate_up).round(3)
    array([[ 2.193, -1.076]])
    >>> mb.silu_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
    array([[ 2.193, -1.076]])
)";

constexpr const char* kGeluAndMulText =
    R"(gelu_and_mul($module, gate, up=None, *, packing='halves', limit=None, up_offset=0.0, row_scale=None, out=None, stream=None)
--

GeGLU: ``gelu(gate) * up``, as :func:`gated_activation` with ``kind="gelu"``.

Args:
    gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
    up: the shape, dtype, framework and device of ``gate``.
    packing: as in :func:`gated_activation`.
    limit: as in :func:`gated_activation`.
    up_offset: as in :func:`gated_activation`.
    row_scale: as in :func:`gated_activation`.
    out: as in :func:`gated_activation`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation` returns.

Raises:
    What :func:`gated_activation` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
    >>> mb.gelu_and_mul(gate_up).round(3)
    array([[ 2.524, -0.635]])
    >>> mb.gelu_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
    array([[ 2.524, -0.635]])
)";

constexpr const char* kGeluTanhAndMulText =
    R"(gelu_tanh_and_mul($module, gate, up=None, *, packing='halves', limit=None, up_offset=0.0, row_scale=None, out=None, stream=None)
--

GeGLU by tanh, as :func:`gated_activation` with ``kind="gelu_tanh"``.

Args:
    gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
    up: the shape, dtype, framework and device of ``gate``.
    packing: as in :func:`gated_activation`.
    limit: as in :func:`gated_activation`.
    up_offset: as in :func:`gated_activation`.
    row_scale: as in :func:`gated_activation`.
    out: as in :func:`gated_activation`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation` returns.

Raises:
    What :func:`gated_activation` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
    >>> mb.gelu_tanh_and_mul(gate_up).round(3)
    array([[ 2.524, -0.635]])
    >>> mb.gelu_tanh_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
    array([[ 2.524, -0.635]])
)";

constexpr const char* kSigmoidAndMulText =
    R"(sigmoid_and_mul($module, gate, up=None, *, packing='halves', alpha=1.0, limit=None, up_offset=0.0, row_scale=None, out=None, stream=None)
--

GLU: ``sigmoid(gate) * up``, as :func:`gated_activation` with ``kind="sigmoid"``.

Args:
    gate: ``(..., 2 * cols)``, packed as ``packing`` says; with ``up`` ``(..., cols)``.
    up: the shape, dtype, framework and device of ``gate``.
    packing: as in :func:`gated_activation`.
    alpha: as in :func:`gated_activation`.
    limit: as in :func:`gated_activation`.
    up_offset: as in :func:`gated_activation`.
    row_scale: as in :func:`gated_activation`.
    out: as in :func:`gated_activation`.
    stream: as in :func:`gated_activation`.

Returns:
    What :func:`gated_activation` returns.

Raises:
    What :func:`gated_activation` raises.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
    >>> mb.sigmoid_and_mul(gate_up).round(3)
    array([[2.193, 1.076]])
    >>> mb.sigmoid_and_mul(gate_up[:, :2], gate_up[:, 2:]).round(3)
    array([[2.193, 1.076]])
)";

}  // namespace

const Op kSiluAndMul{
    "silu_and_mul",
    kSiluAndMulText,
    {"gate", "up", "packing", "alpha", "limit", "up_offset", "row_scale", "out", "stream"},
    1,
    2,
    [](PyObject* const* values) {
      return forward<true>("silu_and_mul", Activation::kSilu, values);
    }};

const Op kGeluAndMul{"gelu_and_mul",
                     kGeluAndMulText,
                     {"gate", "up", "packing", "limit", "up_offset", "row_scale", "out", "stream"},
                     1,
                     2,
                     [](PyObject* const* values) {
                       return forward<false>("gelu_and_mul", Activation::kGelu, values);
                     }};

const Op kGeluTanhAndMul{
    "gelu_tanh_and_mul",
    kGeluTanhAndMulText,
    {"gate", "up", "packing", "limit", "up_offset", "row_scale", "out", "stream"},
    1,
    2,
    [](PyObject* const* values) {
      return forward<false>("gelu_tanh_and_mul", Activation::kGeluTanh, values);
    }};

const Op kSigmoidAndMul{
    "sigmoid_and_mul",
    kSigmoidAndMulText,
    {"gate", "up", "packing", "alpha", "limit", "up_offset", "row_scale", "out", "stream"},
    1,
    2,
    [](PyObject* const* values) {
      return forward<true>("sigmoid_and_mul", Activation::kSigmoid, values);
    }};

}  // namespace membound::python
