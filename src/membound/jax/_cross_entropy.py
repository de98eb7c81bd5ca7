# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy, forward and backward."""

import functools
import math

import jax

from membound.jax import _arguments, _ffi, _sharding, _signatures


def resolved(options):
    """The options, with a number for no softcap."""
    smoothing, z_loss = options.label_smoothing, options.z_loss
    for name, value, right, text in (
        ("label_smoothing", smoothing, 0.0 <= smoothing <= 1.0, "from 0 to 1"),
        ("z_loss", z_loss, 0.0 <= z_loss < math.inf, "finite and not negative"),
    ):
        if not right:
            raise ValueError(f"{options.op}: argument '{name}' must be {text}, got {value:g}")
    return options._replace(softcap=math.inf if options.softcap is None else options.softcap)


@functools.partial(_signatures.cross_entropy, resolve=resolved)
def cross_entropy(arrays, options):
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
    _arguments.check_arrays(options.op, arrays)
    loss, *more = _ffi.validated(options.validate, _jitted_forward, *arrays.values(), options)
    wanted = (options.return_lse, options.return_z_loss, options.return_predictions)
    also = [one for one, is_wanted in zip(more, wanted, strict=True) if is_wanted]
    return (loss, *also) if also else loss


@functools.partial(_signatures.cross_entropy_backward, resolve=resolved)
def cross_entropy_backward(arrays, options):
    """The gradient of :func:`cross_entropy`; see :func:`membound.cross_entropy_backward`.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.log(jnp.array([[1.0, 1.0, 2.0]])), jnp.array([2])
    >>> loss, lse = cross_entropy(logits, labels, return_lse=True)
    >>> [round(float(d), 3) for d in cross_entropy_backward(1.0, logits, labels, lse)[0]]
    [0.25, 0.25, -0.5]
    """
    op, dloss = options.op, arrays.pop("dloss")
    _arguments.check_arrays(op, arrays)
    logits, labels, *others = arrays.values()
    if not isinstance(dloss, jax.Array):
        kind = _ffi.statistics_dtype(logits)
        dloss = _arguments.number(op, dloss, "dloss")
        _arguments.check_finite(op, dloss, "dloss", kind)
        shape = labels.shape if options.reduction == "none" else ()
        dloss = jax.numpy.full(shape, dloss, kind)
    return _ffi.validated(
        options.validate, _jitted_backward, dloss, logits, labels, *others, options
    )


def check(logits, labels, weight, options, of_classes="weight"):
    """The shapes and dtypes of a call; of logits only these are looked at."""
    op = options.op
    _arguments.check_rows(op, logits, "logits")
    _arguments.check_finite(op, options.z_loss, "z_loss", logits.dtype)
    _arguments.check_limit(op, options.softcap, "softcap", logits.dtype)
    if weight is not None:
        _arguments.check_floating(op, weight, of_classes)
        if weight.shape != logits.shape[-1:]:
            raise ValueError(
                f"{op}: argument '{of_classes}' must have shape {logits.shape[-1:]}, one for "
                f"each column, got {weight.shape}"
            )
    if labels.dtype.name not in ("int32", "int64"):
        raise TypeError(f"{op}: argument 'labels' must be int32 or int64, got {labels.dtype.name}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"{op}: argument 'labels' must have shape {logits.shape[:-1]}, got {labels.shape}"
        )


@functools.partial(jax.jit, static_argnums=3)
def _jitted_forward(logits, labels, weight, options):
    """The loss, lse, the z loss and the predictions."""
    check(logits, labels, weight, options)
    weight = None if weight is None else jax.lax.stop_gradient(weight)
    logits, labels = _sharding.vary_together(logits, labels)
    loss, lse, z_loss, predictions = _forward(logits, labels, weight, options)
    z_loss = jax.lax.stop_gradient(z_loss)
    if options.reduction != "none":
        loss, z_loss = loss.sum(), z_loss.sum()
    if options.reduction == "mean":
        total = label_weights(logits, labels, weight, options).sum()
        loss, z_loss = loss / total, z_loss / total
    return loss, lse, z_loss, predictions


def label_weights(logits, labels, weight, options):
    """1 or the class's weight; 0 for an ignored label, NaN for one that is not a column."""
    kind = _ffi.statistics_dtype(logits)
    outside = (labels < 0) | (labels >= logits.shape[-1])
    of_class = jax.numpy.ones((), kind)
    if weight is not None:
        of_class = weight.astype(kind)[jax.numpy.where(outside, 0, labels)]
    found = jax.numpy.where(outside, jax.numpy.nan, of_class)
    return jax.numpy.where(labels == options.ignore_index, 0, found).astype(kind)


@functools.partial(jax.jit, static_argnums=7)
def _jitted_backward(dloss, logits, labels, lse, weight, entropy, dentropy, options):
    check(logits, labels, weight, options)
    kind, rows = _ffi.statistics_dtype(logits), logits.shape[:-1]
    of_loss = rows if options.reduction == "none" else ()
    _arguments.check_like(options.op, dloss, "dloss", kind, of_loss)
    _arguments.check_like(
        options.op, lse, "lse", kind, (*rows, 2) if lse.ndim > len(rows) else rows
    )
    of_entropy = {"entropy": entropy, "dentropy": dentropy}
    for argument, array in of_entropy.items():
        if array is not None:
            _arguments.check_like(options.op, array, argument, kind, rows)
        elif any(other is not None for other in of_entropy.values()):
            (other,) = of_entropy.keys() - {argument}
            raise ValueError(
                f"{options.op}: argument '{argument}' must be given with '{other}', got None"
            )
    if options.reduction == "mean":
        dloss = dloss / label_weights(logits, labels, weight, options).sum()
    dloss = jax.numpy.broadcast_to(dloss, rows)
    return backward_call(dloss, logits, labels, lse, weight, options, **of_entropy)


def forward_call(logits, labels, weight, options, with_entropy=False):
    """The loss, lse, z loss and predictions of rows; their entropies if wanted."""

    def run(logits, labels, weight):
        rows = _ffi.rows_of(logits)
        results = {
            "loss": rows,
            "lse": jax.ShapeDtypeStruct((*rows.shape, 2), rows.dtype),
            "z_losses": rows,
            "predictions": _ffi.like(labels) if options.return_predictions else None,
            "entropy": rows if with_entropy else None,
        }
        arrays = {"logits": logits, "labels": labels, "weight": weight}
        return _ffi.call("cross_entropy", arrays, results, options)

    rows = _sharding.rows_of(logits)
    results = [_sharding.Result(rows)] * (3 + options.return_predictions + with_entropy)
    found = _sharding.cut(run, (logits, labels, weight), (rows, rows, ()), results)
    predictions = found[3] if options.return_predictions else None
    return *found[:3], predictions, *found[-1:] * with_entropy


def backward_call(dloss, logits, labels, lse, weight, options, entropy=None, dentropy=None):
    def run(*operands):
        names = "dloss", "logits", "labels", "lse", "weight", "entropy", "dentropy"
        arrays = dict(zip(names, operands, strict=True))
        results = {"dlogits": _ffi.like(arrays["logits"])}
        return _ffi.call("cross_entropy_backward", arrays, results, options)

    operands = dloss, logits, labels, lse, weight, entropy, dentropy
    rows = _sharding.rows_of(logits)
    of_operands = rows, rows, rows, rows, (), rows, rows
    return _sharding.cut(run, operands, of_operands, [_sharding.Result(rows)])[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _forward(logits, labels, weight, options):
    return forward_call(logits, labels, weight, options)


def _forward_saving(logits, labels, weight, options):
    results = forward_call(logits, labels, weight, options)
    return results, (logits, labels, weight, results[1])


def _gradients(options, saved, gradients):
    logits, labels, weight, lse = saved
    dloss, dlse, *_ = gradients
    backward = _arguments.options_of_backward(options)
    dlogits = backward_call(dloss, logits, labels, lse, weight, backward)
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
