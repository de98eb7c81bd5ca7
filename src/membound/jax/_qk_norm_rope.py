# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm of heads and rotary position embedding in one pass, and the gradients."""

import functools

import jax
import numpy as np

from membound.jax import _arguments, _ffi, _sharding, _signatures
from membound.jax._rope import ROTATED, in_parts, sort_arguments, traced_workspace

_LEARNED = ("q", "k", "q_weight", "k_weight")
_ANGLES = ("cos", "sin", "freqs")
_OUT = {"q": "out", "k": "k_out"}


@_signatures.qk_norm_rope
def qk_norm_rope(arrays, options):
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
    given, options = sort_arguments(arrays, options, required=("q",))
    results = _ffi.validated(options.validate, _jitted, given, options)
    return results[0] if len(results) == 1 else tuple(results)


@_signatures.qk_norm_rope_backward
def qk_norm_rope_backward(arrays, options):
    """Compute the gradients of qk_norm_rope; see :func:`membound.qk_norm_rope_backward`.

    >>> import jax.numpy as jnp
    >>> q = jnp.array([3.0, 0.0, 0.0, 4.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = jnp.array([[0.5, 1.0]]), jnp.array([[0.25, 0.0]])
    >>> given = jnp.ones_like(q), None, q, None, jnp.ones(4), None, cos, sin
    >>> [round(y, 3) for y in qk_norm_rope_backward(*given, eps=0.0)[2].tolist()]
    [0.9, 0.0, 0.0, 1.6]
    """
    if (arrays["k"] is None) != (arrays["dk"] is None):
        raise ValueError(f"{options.op}: argument 'k' must be given with 'dk', and only then")
    given, options = sort_arguments(arrays, options, required=("q", "dq"))
    found = _ffi.validated(options.validate, _jitted_backward, given, options)
    return tuple(found.get(name) for name in _LEARNED)


@functools.partial(jax.jit, static_argnums=1)
def _jitted(arrays, options):
    arrays = dict(zip(arrays, _sharding.vary_together(*arrays.values()), strict=True))
    learned, rest = (
        {name: one for name, one in arrays.items() if (name in _LEARNED) is wanted}
        for wanted in (True, False)
    )
    return _normed(learned, rest, options)


@functools.partial(jax.jit, static_argnums=1)
def _jitted_backward(arrays, options):
    return _gradients(arrays, options)


def _outputs(arrays, options, with_rstd):
    """The rotated heads, and the rstd of each if with_rstd."""
    names = [name for name in ("q", "k") if name in arrays]
    rstds = [f"{name}_rstd" for name in names if with_rstd]

    def run(arrays):
        results = {_OUT[name]: _ffi.like(arrays[name]) for name in names}
        results |= {rstd: _ffi.rows_of(arrays[rstd[0]]) for rstd in rstds}
        traced_workspace(arrays, results, options)
        return _ffi.call(options.op, arrays, results, options)

    return in_parts(run, arrays, options, names + rstds)


def _gradients(arrays, options):
    """The gradients of the given arrays, by name."""
    heads = [name for name in ("q", "k") if name in arrays]
    weights = [name for name in ("q_weight", "k_weight") if options.need_dweight and name in arrays]

    def run(arrays):
        results = {_OUT[name]: _ffi.like(arrays[name]) for name in heads}
        results |= {f"d{name}": _ffi.like(arrays[name]) for name in weights}
        given = {ROTATED.get(name, name): one for name, one in arrays.items()}
        size = traced_workspace(given, results, options)
        count = len(results)
        if weights:
            results["workspace"] = jax.ShapeDtypeStruct((size,), np.uint8)
        return _ffi.call(options.op, given, results, options)[:count]

    found = in_parts(run, arrays, options, heads + weights)
    return dict(zip((*heads, *weights), found, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _normed(learned, rest, options):
    return _outputs({**learned, **rest}, options, options.return_rstd)


def _forward(learned, rest, options):
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
    return (outputs if options.return_rstd else outputs[:count]), (learned, rest, rstds)


def _backward(options, saved, gradients):
    learned, rest, rstds = saved
    zero = jax.custom_derivatives.SymbolicZero
    names = [f"d{name}" for name in ("q", "k") if name in learned]
    gradients = [jax.numpy.zeros(one.shape, one.dtype) if isinstance(one, zero) else one
                 for one in gradients]  # fmt: skip
    heads = dict(zip(names, gradients, strict=False))
    arrays = {**learned, **rest, **rstds, **heads}
    options = _arguments.options_of_backward(options)._replace(need_dweight=True)
    return _gradients(arrays, options), None


_normed.defvjp(_forward, _backward, symbolic_zeros=True)
