# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy, forward and backward."""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np

from membound.jax import _arguments, _ffi, _sharding


class Options(NamedTuple):
    """What is static in a call."""

    op: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    validate: bool


def cross_entropy(
    logits, labels, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None,
    validate=False, return_lse=False,
):  # fmt: skip
    """The cross entropy of each row and its label; see :func:`membound.cross_entropy`.

    The options are static: each new combination compiles once. Reverse-mode gradients (jax.grad,
    jax.vjp) run :func:`cross_entropy_backward`; lse, too, is differentiable. Forward mode and
    second derivatives raise. ``validate`` waits for the result; inside jit XLA raises what it
    finds when the program runs, as ValueError or ``jax.errors.JaxRuntimeError``.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[1.0, 1.0, 2.0]]))
    >>> [round(float(loss), 4) for loss in cross_entropy(logits, jnp.array([2]))]
    [0.6931]
    """
    op = "cross_entropy"
    _arguments.check_arrays(op, {"logits": logits, "labels": labels})
    options = _options(op, ignore_index, label_smoothing, z_loss, softcap, validate)
    loss, lse = _ffi.validated(validate, _jitted_forward, logits, labels, options)
    return (loss, lse) if _arguments.flag(op, return_lse, "return_lse") else loss


def cross_entropy_backward(
    dloss, logits, labels, lse, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None,
    validate=False,
):  # fmt: skip
    """The gradient of :func:`cross_entropy`; see :func:`membound.cross_entropy_backward`.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.log(jnp.array([[1.0, 1.0, 2.0]])), jnp.array([2])
    >>> loss, lse = cross_entropy(logits, labels, return_lse=True)
    >>> [round(float(d), 3) for d in cross_entropy_backward(1.0, logits, labels, lse)[0]]
    [0.25, 0.25, -0.5]
    """
    op = "cross_entropy_backward"
    _arguments.check_arrays(op, {"logits": logits, "labels": labels, "lse": lse})
    options = _options(op, ignore_index, label_smoothing, z_loss, softcap, validate)
    if not isinstance(dloss, jax.Array):
        kind = _ffi.statistics_dtype(logits)
        dloss = _arguments.number(op, dloss, "dloss")
        _arguments.check_finite(op, dloss, "dloss", kind)
        dloss = jax.numpy.full(labels.shape, dloss, kind)
    return _ffi.validated(validate, _jitted_backward, dloss, logits, labels, lse, options)


def _options(op, ignore_index, label_smoothing, z_loss, softcap, validate):
    options = Options(
        op=op,
        ignore_index=_arguments.integer(op, ignore_index, "ignore_index"),
        label_smoothing=_arguments.number(op, label_smoothing, "label_smoothing"),
        z_loss=_arguments.number(op, z_loss, "z_loss"),
        softcap=math.inf if softcap is None else _arguments.number(op, softcap, "softcap"),
        validate=_arguments.flag(op, validate, "validate"),
    )
    for name, right, text in (
        ("label_smoothing", 0.0 <= options.label_smoothing <= 1.0, "from 0 to 1"),
        ("z_loss", 0.0 <= options.z_loss < math.inf, "finite and not negative"),
        ("softcap", options.softcap > 0.0, "above 0"),
    ):
        if not right:
            value = getattr(options, name)
            raise ValueError(f"{op}: argument '{name}' must be {text}, got {value:g}")
    return options


def _check(logits, labels, options):
    op = options.op
    _arguments.check_rows(op, logits, "logits")
    _arguments.check_finite(op, options.z_loss, "z_loss", logits.dtype)
    if _arguments.as_computed(options.softcap, logits.dtype) == 0.0:
        raise ValueError(
            f"{op}: argument 'softcap' must be above 0 in float32, got {options.softcap:g}"
        )
    if labels.dtype.name not in ("int32", "int64"):
        raise TypeError(f"{op}: argument 'labels' must be int32 or int64, got {labels.dtype.name}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"{op}: argument 'labels' must have shape {logits.shape[:-1]}, got {labels.shape}"
        )


@functools.partial(jax.jit, static_argnums=2)
def _jitted_forward(logits, labels, options):
    _check(logits, labels, options)
    return _forward(*_sharding.alike(logits, labels), options)


@functools.partial(jax.jit, static_argnums=4)
def _jitted_backward(dloss, logits, labels, lse, options):
    _check(logits, labels, options)
    for name, array in (("dloss", dloss), ("lse", lse)):
        kind = _ffi.statistics_dtype(logits)
        _arguments.check_like(options.op, array, name, kind, logits.shape[:-1])
    return _backward_call(dloss, logits, labels, lse, options)


def _attributes(options):
    return {
        "ignore_index": np.int64(options.ignore_index),
        "label_smoothing": np.float64(options.label_smoothing),
        "z_loss": np.float64(options.z_loss),
        "softcap": np.float64(options.softcap),
        "validate": np.int32(options.validate),
    }


def _forward_call(logits, labels, options):
    def run(*operands):
        rows = _ffi.rows_of(operands[0])
        return _ffi.call("membound_cross_entropy", [rows, rows], operands, **_attributes(options))

    return tuple(_sharding.call(run, (logits, labels), (1, 0), (0, 0)))


def _backward_call(dloss, logits, labels, lse, options):
    def run(*operands):
        out = [_ffi.like(operands[1])]
        return _ffi.call("membound_cross_entropy_backward", out, operands, **_attributes(options))

    return _sharding.call(run, (dloss, logits, labels, lse), (0, 1, 0, 0), (1,))[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _forward(logits, labels, options):
    return _forward_call(logits, labels, options)


def _forward_saving(logits, labels, options):
    loss, lse = _forward_call(logits, labels, options)
    return (loss, lse), (logits, labels, lse)


def _gradients(options, saved, gradients):
    logits, labels, lse = saved
    dloss, dlse = gradients
    dlogits = _backward_call(dloss, logits, labels, lse, options)
    # lse is what the loss of labels spread evenly is, and the mean logit; XLA drops it where nobody
    # asks.
    wide = _ffi.statistics_dtype(logits)
    capped = logits.astype(wide)
    slope = jax.numpy.ones((), wide)
    if _arguments.as_computed(options.softcap, wide) < math.inf:
        turned = jax.numpy.tanh(capped / options.softcap)
        capped, slope = options.softcap * turned, 1 - turned**2
    counts = (labels != options.ignore_index) & (labels >= 0) & (labels < logits.shape[-1])
    share = jax.numpy.where(counts, dlse, 0)[..., None]
    more = share * jax.numpy.exp(capped - lse[..., None]) * slope
    total = jax.numpy.where(share == 0, dlogits, (dlogits.astype(wide) + more).astype(logits.dtype))
    return total, None


_forward.defvjp(_forward_saving, _gradients)
