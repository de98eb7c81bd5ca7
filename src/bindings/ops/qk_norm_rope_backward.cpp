// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/ops.hpp"
#include "qk_norm_rope.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "qk_norm_rope_backward";

enum Parameter {
  kDq,
  kDk,
  kQ,
  kK,
  kQWeight,
  kKWeight,
  kCos,
  kSin,
  kQRstd,
  kKRstd,
  kEps,
  kWeightOffset,
  kRounding,
  kFreqs,  // and the others of kRopeOptions
  kAccumulate = kFreqs + kRopeOptions,
  kNeedDweight,
  kDqOut,
  kDkOut,
  kDqWeight,
  kDkWeight,
  kStream,
};

constexpr const char* kText =
    R"(qk_norm_rope_backward($module, dq, dk, q, k, q_weight=None, k_weight=None, cos=None, sin=None, *, q_rstd=None, k_rstd=None, eps=1e-06, weight_offset=0.0, rounding='once', freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None, layout='bshd', interleaved=False, rotary_dim=None, rotary_offset=0, sections=None, interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False, accumulate=False, need_dweight=True, dq_out=None, dk_out=None, dq_weight=None, dk_weight=None, stream=None)
--

The gradients of :func:`qk_norm_rope`: of q and k, and of their weights.

With ``h = x * rstd``, ``t`` the gradient of the result turned the other way and ``g = t * (weight +
weight_offset)``: ``dx = rstd * (g - h * mean(g * h))`` and ``dweight`` the sum of ``t * h`` over
tokens, and over heads where they share the weight.

Args:
    dq: the gradient of what :func:`qk_norm_rope` returned for ``q``, in the shape and dtype of
        that.
    dk: the same for ``k``; None: ``q`` alone.
    q: what :func:`qk_norm_rope` read.
    k: likewise, with ``dk`` and only then.
    q_weight: as given to :func:`qk_norm_rope`, like all of the following up to ``validate`` but
        ``q_rstd`` and ``k_rstd``.
    k_weight: likewise.
    cos: likewise.
    sin: likewise.
    q_rstd: what ``return_rstd=True`` returned; None: computed again, with ``eps``.
    k_rstd: the same for ``k``.
    eps: likewise as given.
    weight_offset: likewise.
    rounding: likewise: ``"before_weight"`` rounds ``h`` in ``dweight``, where the forward did.
        Nothing else is rounded before the results.
    freqs: likewise.
    position_ids: likewise.
    seqlen_offsets: likewise.
    cu_seqlens: likewise.
    layout: likewise.
    interleaved: likewise.
    rotary_dim: likewise.
    rotary_offset: likewise.
    sections: likewise.
    interleaved_sections: likewise.
    attention_scaling: likewise.
    inverse: likewise.
    validate: likewise.
    accumulate: add to ``dq_weight`` and ``dk_weight``, which are given then, instead of writing
        them. Not for JAX arrays.
    need_dweight: False: no gradients of the weights.
    dq_out: where to write. It may be ``dq`` or ``q`` itself (in place). Not for JAX arrays.
    dk_out: the same for ``dk`` and ``k``.
    dq_weight: where to write, the shape of ``q_weight`` in any floating dtype. None: new, like
        ``q_weight``.
    dk_weight: the same for ``k_weight``.
    stream: as in :func:`rms_norm`.

Returns:
    ``(dq, dk, dq_weight, dk_weight)``, None for what is not there. The gradients of weights are
    summed in float32 (float64 for float64) in a tree that shapes and dtype fix: the same bits on
    every run. Frequencies and tables have none here.

Raises:
    What :func:`qk_norm_rope` raises, and
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> q = np.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
    >>> dq, _, dq_weight, _ = mb.qk_norm_rope_backward(
    ...     np.ones_like(q), None, q, None, np.ones(4), None, cos, sin, eps=0
    ... )
    >>> dq_weight
    array([1.68, 0.  , 0.  , 1.6 ])
)";

nb::object call(PyObject* const* values) {
  return call_qk_norm_rope_backward({.forward = {.rope = RopeArguments{.op = kName,
                                                                       .q_name = "dq",
                                                                       .k_name = "dk",
                                                                       .out_name = "dq_out",
                                                                       .k_out_name = "dk_out",
                                                                       .backward = true,
                                                                       .q = values[kDq],
                                                                       .k = values[kDk],
                                                                       .cos = values[kCos],
                                                                       .sin = values[kSin],
                                                                       .out = values[kDqOut],
                                                                       .k_out = values[kDkOut],
                                                                       .stream = values[kStream]}
                                                             .with_options(values + kFreqs),
                                                 .q_weight = values[kQWeight],
                                                 .k_weight = values[kKWeight],
                                                 .eps = values[kEps],
                                                 .weight_offset = values[kWeightOffset],
                                                 .rounding = values[kRounding]},
                                     .q = values[kQ],
                                     .k = values[kK],
                                     .q_rstd = values[kQRstd],
                                     .k_rstd = values[kKRstd],
                                     .accumulate = values[kAccumulate],
                                     .need_dweight = values[kNeedDweight],
                                     .dq_weight = values[kDqWeight],
                                     .dk_weight = values[kDkWeight]});
}

}  // namespace

const Op kQkNormRopeBackward{kName,
                             kText,
                             {"dq",
                              "dk",
                              "q",
                              "k",
                              "q_weight",
                              "k_weight",
                              "cos",
                              "sin",
                              "q_rstd",
                              "k_rstd",
                              "eps",
                              "weight_offset",
                              "rounding",
                              "freqs",
                              "position_ids",
                              "seqlen_offsets",
                              "cu_seqlens",
                              "layout",
                              "interleaved",
                              "rotary_dim",
                              "rotary_offset",
                              "sections",
                              "interleaved_sections",
                              "attention_scaling",
                              "inverse",
                              "validate",
                              "accumulate",
                              "need_dweight",
                              "dq_out",
                              "dk_out",
                              "dq_weight",
                              "dk_weight",
                              "stream"},
                             4,
                             8,
                             call};

}  // namespace membound::python
