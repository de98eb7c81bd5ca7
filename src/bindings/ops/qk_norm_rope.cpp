// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "qk_norm_rope.hpp"

#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "qk_norm_rope";

enum Parameter {
  kQ,
  kK,
  kQWeight,
  kKWeight,
  kCos,
  kSin,
  kEps,
  kWeightOffset,
  kRounding,
  kFreqs,  // and the others of kRopeOptions
  kV = kFreqs + kRopeOptions,
  kKeyCache,
  kValueCache,
  kSlotMapping,
  kOut,
  kKOut,
  kReturnRstd,
  kStream,
};

constexpr const char* kText =
    R"(qk_norm_rope($module, q, k=None, q_weight=None, k_weight=None, cos=None, sin=None, *, eps=1e-06, weight_offset=0.0, rounding='once', freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None, layout='bshd', interleaved=False, rotary_dim=None, rotary_offset=0, sections=None, interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False, v=None, key_cache=None, value_cache=None, slot_mapping=None, out=None, k_out=None, return_rstd=False, stream=None)
--

RMSNorm of each head of q and k, and rotary embedding of the result, in one pass.

``rstd = 1 / sqrt(mean(x * x) + eps)`` over a head, ``out = rope(x * rstd * (weight +
weight_offset))``, as in Qwen3 and Gemma 3 (Zhang and Sennrich 2019, arXiv:1910.07467; Su et al.
2021, arXiv:2104.09864). Models that normalise all heads of a token as one row, as OLMo 2, take
:func:`rms_norm` and :func:`rope`.

Args:
    q: float16, bfloat16, float32 or float64, from torch, JAX, CuPy or NumPy. Its axes are those of
        ``layout``, with any strides; a slice of a fused qkv array is fine. Heads have at most 1024
        elements.
    k: like ``q``, but for the number of heads; None: ``q`` alone.
    q_weight: ``(head_dim,)``, or ``(heads, head_dim)`` with one for each head, of any floating
        dtype; None for no weight.
    k_weight: the same for ``k``.
    cos: with ``sin`` or ``freqs`` the angles, as in :func:`rope`.
    sin: likewise.
    eps: added to the mean of squares; finite and not negative.
    weight_offset: added to each weight; 1.0 as in Gemma. Must be 0 without weights.
    rounding: where 16-bit values are rounded. ``"once"``: everything in float32, one rounding at
        the end. ``"before_weight"``: the bits of ``rms_norm(..., rounding="before_weight")`` and
        then :func:`rope`; Hugging Face's Qwen3 rounds its norm so. ``"before_rotation"``: the bits
        of ``rms_norm(..., rounding="once")`` and then :func:`rope`; Gemma 3 rounds so.
    freqs: as in :func:`rope`, like all of the following up to ``validate``.
    position_ids: likewise.
    seqlen_offsets: likewise.
    cu_seqlens: likewise.
    layout: likewise.
    interleaved: likewise.
    rotary_dim: likewise. Elements that do not turn are normalised all the same.
    rotary_offset: likewise.
    sections: likewise.
    interleaved_sections: likewise.
    attention_scaling: likewise.
    inverse: likewise.
    validate: likewise; slots beyond the cache raise too.
    v: of ``k``'s shape and dtype; copied into ``value_cache`` bit for bit, in the same launch.
    key_cache: where ``k`` goes, as serving engines keep it: ``(slots, heads, head_dim)``, or pages
        ``(blocks, block_size, heads, head_dim)`` whose slots are ``block * block_size + offset``.
        Of ``k``'s dtype, with any strides: pages of ``(blocks, heads, block_size, head_dim)`` are
        passed as ``cache.transpose(1, 2)``. It may overlap nothing else. Not for JAX arrays.
    value_cache: the same for ``v``, of the shape of ``key_cache``.
    slot_mapping: the slot of each token, int32 or int64, of shape ``(batch, seq)`` or
        ``(batch * seq,)``. A token whose slot is negative (padding) or beyond the cache writes no
        ``k`` and no ``v``. Slots of a call must differ, else which token a slot holds is not said.
    out: where to write: the shape, dtype, framework and device of ``q``. It may be ``q`` itself
        (in place), and may overlap nothing else. Not for JAX arrays.
    k_out: the same for ``k``.
    return_rstd: return ``rstd`` of every head too, of shape ``q.shape[:-1]`` in float32 (float64
        for float64), and so for ``k``: :func:`qk_norm_rope_backward` takes them.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, with ``k`` the pair ``(out, k_out)``: what was given, or new C-contiguous arrays. With
    ``return_rstd=True`` ``(out, q_rstd)`` or ``(out, k_out, q_rstd, k_rstd)``. With ``key_cache``
    ``out`` alone: attention reads ``k`` from the cache then, and a second copy would be memory
    traffic for nobody. There is no gradient of that, nor ``k_out`` and ``return_rstd``.

    Where a position is not in the table, the result is NaN; nothing is read out of bounds.

Raises:
    TypeError: a dtype, a type or a framework that does not fit.
    ValueError: shapes, devices or options that do not fit.
    RuntimeError: a torch tensor requires grad while gradients are recorded, if it is cos, sin or
        freqs, or with ``out``, ``return_rstd``, ``stream`` or a cache;
        :func:`membound.torch.qk_norm_rope` records the others.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> q = np.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
    >>> mb.qk_norm_rope(q, None, np.ones(4), None, cos, sin, eps=0).ravel()
    array([0.72, 0.  , 0.96, 1.6 ])
    >>> cache = np.zeros((3, 1, 4))  # of three tokens
    >>> q = mb.qk_norm_rope(q, q, None, None, cos, sin, key_cache=cache, slot_mapping=np.array([1]))
    >>> cache[:, 0].round(2)
    array([[0.  , 0.  , 0.  , 0.  ],
           [0.72, 0.  , 0.96, 1.6 ],
           [0.  , 0.  , 0.  , 0.  ]])
)";

nb::object call(PyObject* const* values) {
  return call_qk_norm_rope({.rope = RopeArguments{.op = kName,
                                                  .q_name = "q",
                                                  .k_name = "k",
                                                  .out_name = "out",
                                                  .k_out_name = "k_out",
                                                  .q = values[kQ],
                                                  .k = values[kK],
                                                  .cos = values[kCos],
                                                  .sin = values[kSin],
                                                  .out = values[kOut],
                                                  .k_out = values[kKOut],
                                                  .stream = values[kStream]}
                                        .with_options(values + kFreqs),
                            .q_weight = values[kQWeight],
                            .k_weight = values[kKWeight],
                            .eps = values[kEps],
                            .weight_offset = values[kWeightOffset],
                            .rounding = values[kRounding],
                            .v = values[kV],
                            .key_cache = values[kKeyCache],
                            .value_cache = values[kValueCache],
                            .slot_mapping = values[kSlotMapping]},
                           values[kReturnRstd]);
}

}  // namespace

const Op kQkNormRope{kName,
                     kText,
                     {"q",
                      "k",
                      "q_weight",
                      "k_weight",
                      "cos",
                      "sin",
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
                      "v",
                      "key_cache",
                      "value_cache",
                      "slot_mapping",
                      "out",
                      "k_out",
                      "return_rstd",
                      "stream"},
                     1,
                     6,
                     call};

}  // namespace membound::python
