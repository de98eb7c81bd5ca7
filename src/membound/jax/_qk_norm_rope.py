# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm of heads and rotary position embedding in one pass, and the gradients."""

import functools

import jax
import numpy as np

from membound.jax import _arguments, _ffi, _sharding
from membound.jax._rope import in_parts, sort_arguments, traced_workspace

_LEARNED = ("q", "k", "q_weight", "k_weight")
_ANGLES = ("cos", "sin", "freqs")
_OUT = {"q": "out", "k": "k_out"}


def qk_norm_rope(
    q, k=None, q_weight=None, k_weight=None, cos=None, sin=None, *, eps=1e-6, weight_offset=0.0,
    rounding="once", freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None,
    layout="bshd", interleaved=False, rotary_dim=None, rotary_offset=0, sections=None,
    interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False,
    return_rstd=False,
):  # fmt: skip
    """RMSNorm of each head of q and k, and rotary embedding of the result.

    See :func:`membound.qk_norm_rope` for the arguments. All but the arrays are static: each new
    combination compiles once. Differentiable in q, k and their weights, backwards and once; rstd
    carries no gradient, and angles have none.

    >>> import jax.numpy as jnp
    >>> q = jnp.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = jnp.array([[0.5, 1.0]]), jnp.array([[0.25, 0.0]])
    >>> [round(y, 3) for y in qk_norm_rope(q, None, None, None, cos, sin, eps=0.0).ravel().tolist()]
    [0.6, 0.0, 0.3, 1.6]
    """
    arrays = {
        "q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin,
        "freqs": freqs, "position_ids": position_ids, "seqlen_offsets": seqlen_offsets,
        "cu_seqlens": cu_seqlens,
    }  # fmt: skip
    options = {
        "eps": eps, "weight_offset": weight_offset, "rounding": rounding, "layout": layout,
        "interleaved": interleaved, "rotary_dim": rotary_dim, "rotary_offset": rotary_offset,
        "sections": sections, "interleaved_sections": interleaved_sections,
        "attention_scaling": attention_scaling, "inverse": inverse, "validate": validate,
    }  # fmt: skip
    with_rstd = _arguments.flag("qk_norm_rope", return_rstd, "return_rstd")
    given, static = sort_arguments("qk_norm_rope", arrays, options)
    results = _ffi.validated(validate, _jitted, given, static, with_rstd)
    return results[0] if len(results) == 1 else tuple(results)


def qk_norm_rope_backward(
    dq, dk, q, k, q_weight=None, k_weight=None, cos=None, sin=None, *, q_rstd=None, k_rstd=None,
    eps=1e-6, weight_offset=0.0, rounding="once", freqs=None, position_ids=None,
    seqlen_offsets=None, cu_seqlens=None, layout="bshd", interleaved=False, rotary_dim=None,
    rotary_offset=0, sections=None, interleaved_sections=False, attention_scaling=1.0,
    inverse=False, validate=False, need_dweight=True,
):  # fmt: skip
    """Compute the gradients of qk_norm_rope; see :func:`membound.qk_norm_rope_backward`.

    >>> import jax.numpy as jnp
    >>> q = jnp.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = jnp.array([[0.5, 1.0]]), jnp.array([[0.25, 0.0]])
    >>> given = jnp.ones_like(q), None, q, None, jnp.ones(4), None, cos, sin
    >>> [round(y, 3) for y in qk_norm_rope_backward(*given, eps=0.0)[2].tolist()]
    [0.9, 0.0, 0.0, 1.6]
    """
    op = "qk_norm_rope_backward"
    arrays = {
        "q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin,
        "freqs": freqs, "position_ids": position_ids, "seqlen_offsets": seqlen_offsets,
        "cu_seqlens": cu_seqlens, "dq": dq, "dk": dk, "q_rstd": q_rstd, "k_rstd": k_rstd,
    }  # fmt: skip
    options = {
        "eps": eps, "weight_offset": weight_offset, "rounding": rounding, "layout": layout,
        "interleaved": interleaved, "rotary_dim": rotary_dim, "rotary_offset": rotary_offset,
        "sections": sections, "interleaved_sections": interleaved_sections,
        "attention_scaling": attention_scaling, "inverse": inverse, "validate": validate,
    }  # fmt: skip
    if (k is None) != (dk is None):
        raise ValueError(f"{op}: argument 'k' must be given with 'dk', and only then")
    given, static = sort_arguments(op, arrays, options, required=("q", "dq"))
    need_dweight = _arguments.flag(op, need_dweight, "need_dweight")
    found = _ffi.validated(validate, _jitted_backward, given, static, need_dweight)
    return tuple(found.get(name) for name in _LEARNED)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _jitted(arrays, options, with_rstd):
    arrays = dict(zip(arrays, _sharding.vary_together(*arrays.values()), strict=True))
    learned, rest = (
        {name: one for name, one in arrays.items() if (name in _LEARNED) is wanted}
        for wanted in (True, False)
    )
    return _normed(learned, rest, options, with_rstd)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _jitted_backward(arrays, options, need_dweight):
    return _gradients(arrays, options, need_dweight)


def _outputs(arrays, options, with_rstd):
    """The rotated heads, and the rstd of each if with_rstd."""
    names = [name for name in ("q", "k") if name in arrays]
    rstds = [f"{name}_rstd" for name in names if with_rstd]

    def run(arrays):
        results = {_OUT[name]: _ffi.like(arrays[name]) for name in names}
        results |= {rstd: _ffi.rows_of(arrays[rstd[0]]) for rstd in rstds}
        traced_workspace("qk_norm_rope", arrays, results, options)
        return _ffi.call("qk_norm_rope", arrays, results, options)

    return in_parts(run, arrays, options, names + rstds)


def _gradients(arrays, options, need_dweight):
    """The gradients of the given arrays, by name."""
    heads = [name for name in ("q", "k") if name in arrays]
    weights = [name for name in ("q_weight", "k_weight") if need_dweight and name in arrays]
    op = "qk_norm_rope_backward"

    def run(arrays):
        results = {_OUT[name]: _ffi.like(arrays[name]) for name in heads}
        results |= {f"d{name}": _ffi.like(arrays[name]) for name in weights}
        # The handler rotates gradients, and reads what the forward read.
        rotated = {name: arrays.get(f"d{name}") for name in heads}
        given = {**arrays, **{f"{name}_read": arrays[name] for name in heads}, **rotated}
        size = traced_workspace(op, given, results, options)
        count = len(results)
        if weights:
            results["workspace"] = jax.ShapeDtypeStruct((size,), np.uint8)
        return _ffi.call(op, given, results, options)[:count]

    found = in_parts(run, arrays, options, heads + weights)
    return dict(zip((*heads, *weights), found, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _normed(learned, rest, options, with_rstd):
    return _outputs({**learned, **rest}, options, with_rstd)


def _forward(learned, rest, options, with_rstd):
    for name in _ANGLES:
        if name in rest and rest[name].perturbed:
            raise TypeError(
                f"qk_norm_rope: argument '{name}' has no gradient; apply jax.lax.stop_gradient to "
                "it, or take rms_norm and rope"
            )
    learned, rest = ({name: one.value for name, one in some.items()} for some in (learned, rest))
    outputs = _outputs({**learned, **rest}, options, True)
    count = 2 if "k" in learned else 1
    rstds = dict(zip(("q_rstd", "k_rstd"), outputs[count:], strict=False))
    return (outputs if with_rstd else outputs[:count]), (learned, rest, rstds)


def _backward(options, _, saved, gradients):
    learned, rest, rstds = saved
    zero = jax.custom_derivatives.SymbolicZero
    names = [f"d{name}" for name in ("q", "k") if name in learned]
    gradients = [jax.numpy.zeros(one.shape, one.dtype) if isinstance(one, zero) else one
                 for one in gradients]  # fmt: skip
    heads = dict(zip(names, gradients, strict=False))
    arrays = {**learned, **rest, **rstds, **heads}
    return _gradients(arrays, options, True), None


_normed.defvjp(_forward, _backward, symbolic_zeros=True)
