// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/ops.hpp"
#include "rope.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rope_backward";

enum Parameter {
  kDq,
  kDk,
  kCos,
  kSin,
  kQ,
  kK,
  kFreqs,  // and the others of kRopeOptions
  kDqOut = kFreqs + kRopeOptions,
  kDkOut,
  kDfreqs,
  kStream,
};

constexpr const char* kText =
    R"(rope_backward($module, dq, dk=None, cos=None, sin=None, *, q=None, k=None, freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None, layout='bshd', interleaved=False, rotary_dim=None, rotary_offset=0, sections=None, interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False, dq_out=None, dk_out=None, dfreqs=None, stream=None)
--

The gradients of :func:`rope`: dq and dk turned the other way, and that of the frequencies.

``rope`` is linear in ``q`` and ``k``, so their gradients are its transpose and need neither of
them. With ``freqs`` and what ``rope`` read, the gradient of the frequencies comes too:
``dfreqs[j]`` is the sum over tokens and heads of ``position * (x1 * dx2 - x2 * dx1)``.

Args:
    dq: the gradient of what :func:`rope` returned for ``q``, in the shape and dtype of that.
    dk: the same for ``k``; None: ``q`` alone.
    cos: as given to :func:`rope`, like all of the following but ``q`` and ``k``.
    sin: likewise.
    q: what :func:`rope` read, in the shape and dtype of ``dq``. Given: the gradient of ``freqs`` is
        wanted.
    k: the same for ``dk``, with ``q`` and only then.
    freqs: likewise as given.
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
    inverse: likewise: True for the gradient of ``rope(..., inverse=True)``.
    validate: likewise.
    dq_out: where to write. It may be ``dq`` itself (in place), but not ``q``. Not for JAX arrays.
    dk_out: the same for ``dk``.
    dfreqs: where to write, float32 or float64, the shape of ``freqs``. None: new, like ``freqs``.
    stream: as in :func:`rms_norm`.

Returns:
    The gradient of ``q``; with ``dk``, with ``q``, or with both a tuple: ``(dq, dk)``, ``(dq,
    dfreqs)`` or ``(dq, dk, dfreqs)``. ``dfreqs`` is summed in float64 in a tree that the shapes
    fix, from gradients as they were written: the same bits on every run.

Raises:
    What :func:`rope` raises, and
    RuntimeError: a torch tensor requires grad while gradients are recorded, which this function
        never can.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> dq = np.array([0.6, 0.0, 0.8, 1.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
    >>> mb.rope_backward(dq, None, cos, sin).ravel().round(6)
    array([1., 0., 0., 1.])
)";

nb::object call(PyObject* const* values) {
  return call_rope(RopeArguments{.op = kName,
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
                                 .stream = values[kStream],
                                 .q_read = values[kQ],
                                 .k_read = values[kK],
                                 .dfreqs = values[kDfreqs]}
                       .with_options(values + kFreqs));
}

}  // namespace

const Op kRopeBackward{kName,
                       kText,
                       {"dq",
                        "dk",
                        "cos",
                        "sin",
                        "q",
                        "k",
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
                        "dq_out",
                        "dk_out",
                        "dfreqs",
                        "stream"},
                       1,
                       4,
                       call};

}  // namespace membound::python
