# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy, forward and backward."""

import functools
import math
from typing import NamedTuple

import jax

from membound.jax import _arguments, _ffi, _sharding


class Options(NamedTuple):
    """The static options of a call."""

    op: str
    ignore_index: int
    label_smoothing: float
    z_loss: float
    softcap: float
    reduction: str
    validate: bool


def cross_entropy(
    logits, labels, weight=None, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    softcap=None, reduction="none", validate=False, return_lse=False, return_z_loss=False,
    return_predictions=False,
):  # fmt: skip
    """The cross entropy of each row and its label; see :func:`membound.cross_entropy`.

    The options are static: each new combination compiles once. Reverse-mode gradients (jax.grad,
    jax.vjp) run :func:`cross_entropy_backward`; lse, too, is differentiable, while weight and the
    z loss that is returned are constants. Forward mode and second derivatives raise. ``validate``
    waits for the result; inside jit XLA raises what it finds when the program runs, as ValueError
    or ``jax.errors.JaxRuntimeError``.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[1.0, 1.0, 2.0]]))
    >>> [round(float(loss), 4) for loss in cross_entropy(logits, jnp.array([2]))]
    [0.6931]
    """
    op = "cross_entropy"
    _arguments.check_arrays(op, {"logits": logits, "labels": labels, "weight": weight})
    options = _options(op, ignore_index, label_smoothing, z_loss, softcap, reduction, validate)
    wanted = tuple(
        _arguments.flag(op, value, name)
        for value, name in (
            (return_lse, "return_lse"),
            (return_z_loss, "return_z_loss"),
            (return_predictions, "return_predictions"),
        )
    )
    loss, *more = _ffi.validated(
        validate, _jitted_forward, logits, labels, weight, options, return_predictions
    )
    also = [one for one, is_wanted in zip(more, wanted, strict=True) if is_wanted]
    return (loss, *also) if also else loss


def cross_entropy_backward(
    dloss, logits, labels, lse, weight=None, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    softcap=None, reduction="none", validate=False,
):  # fmt: skip
    """The gradient of :func:`cross_entropy`; see :func:`membound.cross_entropy_backward`.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.log(jnp.array([[1.0, 1.0, 2.0]])), jnp.array([2])
    >>> loss, lse = cross_entropy(logits, labels, return_lse=True)
    >>> [round(float(d), 3) for d in cross_entropy_backward(1.0, logits, labels, lse)[0]]
    [0.25, 0.25, -0.5]
    """
    op = "cross_entropy_backward"
    given = {"logits": logits, "labels": labels, "lse": lse, "weight": weight}
    _arguments.check_arrays(op, given)
    options = _options(op, ignore_index, label_smoothing, z_loss, softcap, reduction, validate)
    if not isinstance(dloss, jax.Array):
        kind = _ffi.statistics_dtype(logits)
        dloss = _arguments.number(op, dloss, "dloss")
        _arguments.check_finite(op, dloss, "dloss", kind)
        shape = labels.shape if reduction == "none" else ()
        dloss = jax.numpy.full(shape, dloss, kind)
    return _ffi.validated(validate, _jitted_backward, dloss, logits, labels, lse, weight, options)


def _options(op, ignore_index, label_smoothing, z_loss, softcap, reduction, validate):
    options = Options(
        op=op,
        ignore_index=_arguments.integer(op, ignore_index, "ignore_index"),
        label_smoothing=_arguments.number(op, label_smoothing, "label_smoothing"),
        z_loss=_arguments.number(op, z_loss, "z_loss"),
        softcap=math.inf if softcap is None else _arguments.number(op, softcap, "softcap"),
        reduction=_arguments.choice(op, reduction, "reduction", ("none", "sum", "mean")),
        validate=_arguments.flag(op, validate, "validate"),
    )
    for name, right, text in (
        ("label_smoothing", 0.0 <= options.label_smoothing <= 1.0, "from 0 to 1"),
        ("z_loss", 0.0 <= options.z_loss < math.inf, "finite and not negative"),
    ):
        if not right:
            value = getattr(options, name)
            raise ValueError(f"{op}: argument '{name}' must be {text}, got {value:g}")
    return options


def _check(logits, labels, weight, options):
    op = options.op
    _arguments.check_rows(op, logits, "logits")
    _arguments.check_finite(op, options.z_loss, "z_loss", logits.dtype)
    _arguments.check_limit(op, options.softcap, "softcap", logits.dtype)
    if weight is not None:
        _arguments.check_floating(op, weight, "weight")
        if weight.shape != logits.shape[-1:]:
            raise ValueError(
                f"{op}: argument 'weight' must have shape {logits.shape[-1:]}, one for each "
                f"column, got {weight.shape}"
            )
    if labels.dtype.name not in ("int32", "int64"):
        raise TypeError(f"{op}: argument 'labels' must be int32 or int64, got {labels.dtype.name}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"{op}: argument 'labels' must have shape {logits.shape[:-1]}, got {labels.shape}"
        )


@functools.partial(jax.jit, static_argnums=(3, 4))
def _jitted_forward(logits, labels, weight, options, predicts):
    """The loss, lse, the z loss and the predictions."""
    _check(logits, labels, weight, options)
    weight = None if weight is None else jax.lax.stop_gradient(weight)
    loss, lse, z_loss, predictions = _forward(
        *_sharding.vary_together(logits, labels), weight, options, predicts
    )
    z_loss = jax.lax.stop_gradient(z_loss)
    if options.reduction != "none":
        loss, z_loss = loss.sum(), z_loss.sum()
    if options.reduction == "mean":
        total = _label_weights(logits, labels, weight, options).sum()
        loss, z_loss = loss / total, z_loss / total
    return loss, lse, z_loss, predictions


def _label_weights(logits, labels, weight, options):
    """1 or the class's weight; 0 for an ignored label, NaN for one that is not a column."""
    kind = _ffi.statistics_dtype(logits)
    outside = (labels < 0) | (labels >= logits.shape[-1])
    of_class = jax.numpy.ones((), kind)
    if weight is not None:
        of_class = weight.astype(kind)[jax.numpy.where(outside, 0, labels)]
    found = jax.numpy.where(outside, jax.numpy.nan, of_class)
    return jax.numpy.where(labels == options.ignore_index, 0, found).astype(kind)


@functools.partial(jax.jit, static_argnums=5)
def _jitted_backward(dloss, logits, labels, lse, weight, options):
    _check(logits, labels, weight, options)
    kind, rows = _ffi.statistics_dtype(logits), logits.shape[:-1]
    of_loss = rows if options.reduction == "none" else ()
    _arguments.check_like(options.op, dloss, "dloss", kind, of_loss)
    _arguments.check_like(
        options.op, lse, "lse", kind, (*rows, 2) if lse.ndim > len(rows) else rows
    )
    if options.reduction == "mean":
        dloss = dloss / _label_weights(logits, labels, weight, options).sum()
    dloss = jax.numpy.broadcast_to(dloss, rows)
    return _backward_call(dloss, logits, labels, lse, weight, options)


def _forward_call(logits, labels, weight, options, predicts):
    def run(logits, labels, weight):
        rows = _ffi.rows_of(logits)
        results = {
            "loss": rows,
            "lse": jax.ShapeDtypeStruct((*rows.shape, 2), rows.dtype),
            "z_losses": rows,
            "predictions": _ffi.like(labels) if predicts else None,
        }
        arrays = {"logits": logits, "labels": labels, "weight": weight}
        return _ffi.call("cross_entropy", arrays, results, options)

    rows = _sharding.rows_of(logits)
    results = [_sharding.Result(rows)] * (3 + predicts)
    found = _sharding.cut(run, (logits, labels, weight), (rows, rows, ()), results)
    return *found[:3], found[3] if predicts else None


def _backward_call(dloss, logits, labels, lse, weight, options):
    def run(*operands):
        arrays = dict(zip(("dloss", "logits", "labels", "lse", "weight"), operands, strict=True))
        results = {"dlogits": _ffi.like(arrays["logits"])}
        return _ffi.call("cross_entropy_backward", arrays, results, options)

    operands = dloss, logits, labels, lse, weight
    rows = _sharding.rows_of(logits)
    return _sharding.cut(run, operands, (rows, rows, rows, rows, ()), [_sharding.Result(rows)])[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _forward(logits, labels, weight, options, predicts):
    return _forward_call(logits, labels, weight, options, predicts)


def _forward_saving(logits, labels, weight, options, predicts):
    results = _forward_call(logits, labels, weight, options, predicts)
    return results, (logits, labels, weight, results[1])


def _gradients(options, _, saved, gradients):
    logits, labels, weight, lse = saved
    dloss, dlse, *_ = gradients
    dlogits = _backward_call(dloss, logits, labels, lse, weight, options)
    # The gradient of lse in two parts: through the largest logit, and through the rest.
    wide = _ffi.statistics_dtype(logits)
    capped = logits.astype(wide)
    slope = jax.numpy.ones((), wide)
    if options.softcap < math.inf:
        squashed = jax.numpy.tanh(capped / options.softcap)
        capped, slope = options.softcap * squashed, 1 - squashed**2
    counts = (labels != options.ignore_index) & (labels >= 0) & (labels < logits.shape[-1])
    dtop, dlow = (jax.numpy.where(counts, dlse[..., at], 0)[..., None] for at in (0, 1))
    top, low = lse[..., :1], lse[..., 1:]
    largest = (capped == capped.max(-1, keepdims=True)).astype(wide)
    largest /= largest.sum(-1, keepdims=True)
    more = (dlow * jax.numpy.exp(capped - top - low) + (dtop - dlow) * largest) * slope
    total = jax.numpy.where(
        (dtop == 0) & (dlow == 0), dlogits, (dlogits.astype(wide) + more).astype(logits.dtype)
    )
    return total, None, None


_forward.defvjp(_forward_saving, _gradients)
