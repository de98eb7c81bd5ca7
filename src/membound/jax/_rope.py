# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding and its gradients."""

import functools

import jax
import numpy as np

from membound import _core
from membound.arrays import type_name
from membound.jax import _arguments, _ffi, _sharding, _signatures

_HEADS = ("q", "k")
_ANGLES = ("cos", "sin", "freqs")
_POSITIONS = ("position_ids", "seqlen_offsets", "cu_seqlens")
# The handler rotates gradients, and reads what the forward read.
ROTATED = {"dq": "q", "dk": "k", "q": "q_read", "k": "k_read"}


@_signatures.rope
def rope(arrays, options):
    """Rotary position embedding of q and k, or of q alone.

    See :func:`membound.rope` for the arguments. All but the arrays are static: each new combination
    compiles once, so a loop of decoding passes ``seqlen_offsets`` as an array. Differentiable in q,
    k and freqs, backwards; tables have no gradient. ``validate`` waits for the result; inside jit
    XLA raises what it finds when the program runs, as ValueError or ``jax.errors.JaxRuntimeError``.

    >>> import jax.numpy as jnp
    >>> q = jnp.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = jnp.array([[0.5, 1.0]]), jnp.array([[0.25, 0.0]])
    >>> rope(q, None, cos, sin).ravel().tolist()
    [0.5, 0.0, 0.25, 1.0]
    """
    given, options = sort_arguments(arrays, options, required=("q",))
    results = _ffi.validated(options.validate, _jitted, given, options)
    return results[0] if "k" not in given else tuple(results)


@_signatures.rope_backward
def rope_backward(arrays, options):
    """Compute the gradients of rope; see :func:`membound.rope_backward` for the arguments.

    >>> import jax.numpy as jnp
    >>> dq = jnp.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4)
    >>> cos, sin = jnp.array([[0.5, 1.0]]), jnp.array([[0.25, 0.0]])
    >>> rope_backward(dq, None, cos, sin).ravel().tolist()
    [0.5, 0.0, -0.25, 1.0]
    """
    given, options = sort_arguments(arrays, options, required=("dq",))
    given = {ROTATED.get(name, name): one for name, one in given.items()}
    results = _ffi.validated(options.validate, _jitted_backward, given, options)
    return results[0] if len(results) == 1 else tuple(results)


def sort_arguments(arrays, options, required):
    """The arrays that are given, and the options with seqlen_offsets if they are one number."""
    given = {}
    for name, value in arrays.items():
        if name == "seqlen_offsets" and isinstance(value, (int, np.integer)):
            options = options._replace(start=_arguments.integer(options.op, value, name))
        elif isinstance(value, jax.Array):
            given[name] = value
        elif value is not None or name in required:
            raise TypeError(
                f"{options.op}: argument '{name}' must be a jax array, got {type_name(value)}"
            )
    return given, options


@functools.partial(jax.jit, static_argnums=1)
def _jitted(arrays, options):
    arrays = dict(zip(arrays, _sharding.vary_together(*arrays.values()), strict=True))
    heads, angles, where = ({n: arrays[n] for n in names if n in arrays}
                            for names in (_HEADS, _ANGLES, _POSITIONS))  # fmt: skip
    return _rope(heads, angles, where, options)


@functools.partial(jax.jit, static_argnums=1)
def _jitted_backward(arrays, options):
    return _call(arrays, options)


def traced_workspace(arrays, results, options):
    """Check a call with the core's error texts; return the bytes of its workspace."""
    operands, made = (
        [
            None if name not in given
            else (given[name].shape, _core.DTYPE_CODES[given[name].dtype.name])
            for name in names
        ]
        for names, given in zip(_ffi.HANDLERS[options.op][:2], (arrays, results), strict=True)
    )  # fmt: skip
    return _core.traced_workspace(
        options.op, operands, made, _ffi.attributes_of(options.op, options)
    )


def in_parts(run, arrays, options, results):
    """``run(arrays)``, sharded along heads and along the batch where the arrays are.

    Heads of q and heads of k are sharded independently. results: for each result the name of the
    operand whose shape it has. Gradients of weights are summed over the sharded axes that the
    weights do not have.
    """
    axes, batch = _axes(arrays, options)
    if axes is None:
        return run(arrays)
    names = tuple(arrays)

    def result(name):
        heads = "kh" if name.startswith("k") else "qh"
        summed = [n for n in (batch, heads) if n and n not in axes[name]]
        return _sharding.Result(axes[name], tuple(summed) if name.endswith("weight") else ())

    return _sharding.cut(
        lambda *given: run(dict(zip(names, given, strict=True))),
        tuple(arrays.values()),
        [axes[name] for name in names],
        [result(name) for name in results],
    )


def _axes(arrays, options):
    """The names of each array's leading axes, and of the batch axis if it can be sharded."""
    layout = options.layout
    if arrays["q"].ndim != len(layout):  # mapped
        return None, None
    per_batch = [arrays[n].ndim for n in (*_ANGLES, "position_ids") if n in arrays]
    batch = "b" if "b" in layout and max((2, *per_batch)) == 2 else None
    of_ids = arrays["position_ids"].shape if "position_ids" in arrays else ()
    axes = dict.fromkeys((*_ANGLES, "cu_seqlens"), ())
    axes |= {"seqlen_offsets": (batch,), "position_ids": (batch,) * (len(of_ids) == 2)}
    for name in _HEADS:
        letters = {"b": batch, "h": f"{name}h"}
        lies = tuple(letters.get(letter) for letter in layout[:-1])
        axes |= dict.fromkeys((name, f"d{name}", f"{name}_rstd"), lies)
        weight = arrays.get(f"{name}_weight")
        axes[f"{name}_weight"] = (f"{name}h",) if weight is not None and weight.ndim == 2 else ()
    return axes, batch


def _call(arrays, options):
    """Return out, k_out if k is given, and the gradient of freqs if q_read is given."""
    if "q_read" in arrays:
        return _run(arrays, options)
    heads = [name for name in _HEADS if name in arrays]
    return list(in_parts(lambda own: _run(own, options), arrays, options, heads))


def _run(arrays, options):
    for name in ("q_read", "k_read"):
        _check_read(options.op, arrays, name)
    results = {"out": _ffi.like(arrays["q"])}
    if "k" in arrays:
        results["k_out"] = _ffi.like(arrays["k"])
    if "q_read" in arrays:
        results["dfreqs"] = _ffi.like(arrays["freqs"])
    size = traced_workspace(arrays, results, options)
    count = len(results)
    if size:
        results["workspace"] = jax.ShapeDtypeStruct((size,), np.uint8)
    return list(_ffi.call(options.op, arrays, results, options)[:count])


def _check_read(op, arrays, name):
    """Check q_read and k_read, rope's inputs, which the gradient of freqs needs."""
    argument, gradient = name[0], arrays.get(name[0])
    if name not in arrays:
        wanted = "q_read" in arrays and gradient is not None
        if wanted:
            raise ValueError(f"{op}: argument '{argument}' must be given for the gradient of freqs")
        return
    one = arrays[name]
    if gradient is None or "freqs" not in arrays or "q_read" not in arrays:
        raise ValueError(f"{op}: argument '{argument}' needs 'd{argument}', 'q' and 'freqs'")
    if one.dtype != gradient.dtype:
        raise TypeError(
            f"{op}: argument '{argument}' must be {gradient.dtype.name}, got {one.dtype.name}"
        )
    if one.shape != gradient.shape:
        raise ValueError(
            f"{op}: argument '{argument}' must have shape {gradient.shape}, got {one.shape}"
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _rope(heads, angles, where, options):
    return _call({**heads, **angles, **where}, options)


def _forward(heads, angles, where, options):
    for name in ("cos", "sin"):
        if name in angles and angles[name].perturbed:
            raise TypeError(
                f"rope: argument '{name}' has no gradient; apply jax.lax.stop_gradient to it, or "
                "differentiate in 'freqs'"
            )
    learned = "freqs" in angles and angles["freqs"].perturbed
    heads, angles, where = (
        {name: one.value for name, one in arrays.items()} for arrays in (heads, angles, where)
    )
    return _rope(heads, angles, where, options), (heads if learned else None, angles, where)


def _backward(options, saved, gradients):
    """Call rope itself with the inverse rotation, so that the gradient is differentiable."""
    heads, angles, where = saved
    zero = jax.custom_derivatives.SymbolicZero
    gradients = [jax.numpy.zeros(one.shape, one.dtype) if isinstance(one, zero) else one
                 for one in gradients]  # fmt: skip
    rotated = dict(zip(_HEADS, gradients, strict=False))
    if heads is None:
        back = options._replace(inverse=not options.inverse)
        found = _rope(rotated, angles, where, back)
        return dict(zip(_HEADS, found, strict=False)), None, None
    read = {f"{name}_read": one for name, one in heads.items()}
    back = options._replace(op="rope_backward")
    *found, dfreqs = _call({**rotated, **angles, **where, **read}, back)
    return dict(zip(_HEADS, found, strict=False)), {"freqs": dfreqs}, None


_rope.defvjp(_forward, _backward, symbolic_zeros=True)
