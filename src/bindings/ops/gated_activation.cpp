// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "activation.hpp"
#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "gated_activation";

enum Parameter {
  kGate,
  kUp,
  kKind,
  kPacking,
  kAlpha,
  kLimit,
  kUpOffset,
  kRowScale,
  kOut,
  kStream,
};

constexpr const char* kText =
    R"(gated_activation($module, gate, up=None, *, kind='silu', packing='halves', alpha=None, limit=None, up_offset=0.0, row_scale=None, out=None, stream=None)
--

The middle of a gated feed-forward block, in one pass: ``act(gate) * up``.

In full, ``out = act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset) * row_scale``, in
float32 (float64 for float64) with one rounding at the end, where ``act(g)`` is, by ``kind`` and
with ``Phi`` the integral of the normal distribution,

- ``"silu"``: ``g / (1 + exp(-alpha * g))``; SwiGLU of Llama (Shazeer 2020, arXiv:2002.05202)
- ``"gelu"``: ``g * Phi(g)``; torch's ``gelu``
- ``"gelu_tanh"``: ``g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g ** 3)))``; GeGLU of Gemma
- ``"sigmoid"``: ``1 / (1 + exp(-alpha * g))``; GLU, and gates of attention
- ``"relu2"``: ``max(g, 0) ** 2``; Primer (So et al. 2021, arXiv:2109.08668), alone in Nemotron
- ``"relu"``: ``max(g, 0)``; ReGLU
- ``"situ"``: ``alpha * tanh(g / alpha) / (1 + exp(-g))``; SiTU-GLU of Kimi K3 (arXiv:2607.24653),
  whose other factor is ``limit * tanh(up / limit) + up_offset``

and by the names that configurations of models carry: ``"swish"`` is silu, ``"quick_gelu"`` silu with
``alpha=1.702``, ``"gelu_pytorch_tanh"``, ``"gelu_new"`` and ``"gelu_fast"`` are gelu_tanh,
``"relu_squared"`` is relu2.

gpt-oss is ``packing="interleaved", alpha=1.702, limit=7.0, up_offset=1.0``: with ``g`` and ``u`` the
limited gate and up, ``(u + 1) * g * sigmoid(1.702 * g)``.

Args:
    gate: with ``up``: ``(..., cols)``. Without: ``(..., 2 * cols)``, both packed in one array.
        float16, bfloat16, float32 or float64, with any strides.
    up: the shape, dtype, framework and device of ``gate``, with any strides.
    kind: the function of the gate.
    packing: how ``gate`` holds both: ``"halves"``, first all of the gate, then all of up;
        ``"interleaved"``, gate and up in turn, element by element; or ``"gate"``: it is the gate,
        ``(..., cols)``, and there is no up to multiply by.
    alpha: a factor in the logistic function of silu and sigmoid, the cap of the gate of situ; finite
        and above 0. None for what the kind has: 1, of quick_gelu 1.702, of situ 4.
    limit: the gate is held from above and up on both sides, of situ up alone by a soft cap; above 0.
        None for no limit, of situ 25.
    up_offset: added to up; finite.
    row_scale: a factor for each row, such as the weight of an expert: the shape of the gate less
        its last axis, in float32 (float64 for float64); None for none.
    out: where to write: ``(..., cols)`` of the dtype, framework and device of ``gate``. It may be
        the gate or up itself (in place), such as ``gate[..., :cols]`` of a packed one, but may not
        overlap them otherwise. Not for JAX arrays.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, or a new C-contiguous array of the framework, dtype and device of ``gate``.

Raises:
    ValueError: a shape, extent, option or overlap that is not as above.
    TypeError: an array of another framework or dtype, or an option of another type.
    RuntimeError: a torch tensor requires grad while gradients are recorded, if it is ``row_scale``,
        or with ``out`` or ``stream``; :func:`membound.torch.gated_activation` records the others.
    CudaError: CUDA reports an error.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> gate_up = np.array([[1.0, -1.0, 3.0, 4.0]])
    >>> mb.gated_activation(gate_up).round(3)
    array([[ 2.193, -1.076]])
    >>> mb.gated_activation(gate_up[:, :2], gate_up[:, 2:], kind="relu2")
    array([[3., 0.]])
)";

nb::object call(PyObject* const* values) {
  return call_gated_activation({.op = kName,
                                .gate = values[kGate],
                                .up = values[kUp],
                                .kind = values[kKind],
                                .packing = values[kPacking],
                                .alpha = values[kAlpha],
                                .limit = values[kLimit],
                                .up_offset = values[kUpOffset],
                                .row_scale = values[kRowScale],
                                .stream = values[kStream]},
                               values[kOut]);
}

}  // namespace

const Op kGatedActivation{
    kName,
    kText,
    {"gate", "up", "kind", "packing", "alpha", "limit", "up_offset", "row_scale", "out", "stream"},
    1,
    2,
    call};

}  // namespace membound::python
