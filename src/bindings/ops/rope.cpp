// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "rope.hpp"

#include "ops/ops.hpp"

namespace membound::python {

namespace {

constexpr const char* kName = "rope";

enum Parameter {
  kQ,
  kK,
  kCos,
  kSin,
  kFreqs,  // and the others of kRopeOptions
  kOut = kFreqs + kRopeOptions,
  kKOut,
  kStream,
};

constexpr const char* kText =
    R"(rope($module, q, k=None, cos=None, sin=None, *, freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None, layout='bshd', interleaved=False, rotary_dim=None, rotary_offset=0, sections=None, interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False, out=None, k_out=None, stream=None)
--

Rotary position embedding of q and k, or of q alone, in one launch.

Each pair of elements of a head is turned by the angle of its token's position:
``out1 = x1 * cos - x2 * sin`` and ``out2 = x2 * cos + x1 * sin`` (Su et al. 2021,
arXiv:2104.09864). Products and their sum are each rounded to float32 (float64 for float64), the
result once to its dtype: in float32 the bits of ``t * cos + rotate_half(t) * sin``.

Args:
    q: float16, bfloat16, float32 or float64, from torch, JAX, CuPy or NumPy. Its axes are those of
        ``layout``, with any strides; a slice of a fused qkv array is fine.
    k: like ``q``, but for the number of heads; None: ``q`` alone.
    cos: with ``sin`` the angles, in any of these forms and any floating dtype:
        ``(positions, rotary_dim / 2)`` each;
        ``(positions, rotary_dim)`` each, a column for each element that turns, as heads have them:
        ``out1 = x1 * cos1 - x2 * sin1`` and ``out2 = x2 * cos2 + x1 * sin2``;
        ``cos`` alone as ``(positions, rotary_dim)``, all cosines and then all sines, as vLLM and
        flashinfer keep them;
        of each token its own, ``(batch, seq, ...)`` with the last axis of the pairs above, as
        Hugging Face passes them; a batch of 1 serves all;
        of each sequence, ``(batch, positions, ...)``, with ``position_ids`` or ``seqlen_offsets``
        and another number of positions than ``seq``.
        An axis of 1 where ``layout`` has heads is fine, and so is ``(positions, 1, 1, ...)``. Of a
        complex table pass the views ``table.real`` and ``table.imag``.
    sin: the shape and dtype of ``cos``; None where that holds both.
    freqs: instead of both, ``(rotary_dim / 2,)`` float32 or float64: the angle is
        ``position * freqs``, computed in float64 and exact to 2e-7 up to position 2**24. With two
        axes and more they are angles, in the forms and dtypes of ``cos`` but for the cache.
    position_ids: int32 or int64, ``(batch, seq)``, ``(1, seq)`` or ``(seq,)``; for ``"thd"``
        ``(tokens,)``. None: a token's place in its sequence. With ``sections``, one more axis in
        front: time, height and width of each token.
    seqlen_offsets: where sequences start: an int, or int32 or int64 ``(batch,)`` (of each sequence
        of ``cu_seqlens``), added to ``position_ids`` where those are given. In a loop of decoding
        pass JAX an array: each new int compiles once more.
    cu_seqlens: for ``"thd"``, int32 or int64 ``(sequences + 1,)``: sequence ``i`` is tokens
        ``cu_seqlens[i]`` to before ``cu_seqlens[i + 1]``. A token of none (padding) turns by no
        angle. Without it there is one sequence.
    layout: ``"bshd"``: ``(batch, seq, heads, head_dim)``; ``"sbhd"``; ``"bhsd"`` (Hugging Face);
        ``"thd"``: ``(tokens, heads, head_dim)``.
    interleaved: pairs are neighbours (GPT-J, RoFormer). False: element ``i`` and ``i +
        rotary_dim / 2`` (GPT-NeoX, Llama).
    rotary_dim: elements of a head that turn, even. None: what ``freqs`` or one cache say, else
        ``head_dim - rotary_offset``. The others are copied.
    rotary_offset: the first element that turns.
    sections: pairs of each axis of ``position_ids``, adding up to ``rotary_dim / 2``; at most 4.
        Multimodal RoPE as in Qwen2-VL, and 2-D positions of images: two sections, ``freqs`` or
        table columns repeated.
    interleaved_sections: pair ``j`` takes axis ``j % len(sections)`` while that section lasts, then
        the first axis (Qwen3-VL). False: one section after the other.
    attention_scaling: multiplies cos and sin made from ``freqs``; tables hold it.
    inverse: the transpose: turn the other way. Undoes a call, up to rounding, and is its gradient.
    validate: look at the positions (CPU arrays only) and raise ValueError where one is not in the
        table, or ``cu_seqlens`` are wrong.
    out: where to write: the shape, dtype, framework and device of ``q``. It may be ``q`` itself
        (in place), and may overlap nothing else. Not for JAX arrays.
    k_out: the same for ``k``.
    stream: the CUDA stream to run on, as in :func:`rms_norm`.

Returns:
    ``out``, with ``k`` the pair ``(out, k_out)``: what was given, or new C-contiguous arrays.

    Where a position is not in the table, the result is NaN; nothing is read out of bounds.

Raises:
    TypeError: a dtype, a type or a framework that does not fit.
    ValueError: shapes, devices or options that do not fit.
    RuntimeError: a torch tensor that requires grad while gradients are recorded, if it is cos or
        sin, or with ``out`` or ``stream``; :func:`membound.torch.rope` records the others.

    A call that raises has written nothing.

Example:
    >>> import numpy as np
    >>> import membound as mb
    >>> q = np.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = np.array([[0.6, 1.0]]), np.array([[0.8, 0.0]])
    >>> mb.rope(q, None, cos, sin).ravel()
    array([0.6, 0. , 0.8, 1. ])
    >>> mb.rope(q, None, cos, sin, interleaved=True).ravel()
    array([0.6, 0.8, 0. , 1. ])
)";

nb::object call(PyObject* const* values) {
  return call_rope(RopeArguments{.op = kName,
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
                       .with_options(values + kFreqs));
}

}  // namespace

const Op kRope{kName,
               kText,
               {"q",
                "k",
                "cos",
                "sin",
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
                "out",
                "k_out",
                "stream"},
               1,
               4,
               call};

}  // namespace membound::python
