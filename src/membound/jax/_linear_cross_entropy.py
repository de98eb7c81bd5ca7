# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of a last layer whose logits are never materialised as a whole."""

import functools
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from membound.jax import _arguments, _cross_entropy, _ffi, _sharding, _vocab_shards


class _Options(NamedTuple):
    """loss and gradient: the options of cross_entropy and its backward, without a reduction."""

    chunk_rows: int
    reduction: str
    axis_name: Any
    loss: Any
    gradient: Any
    temperature: float = 1.0
    entropy: bool = False


def linear_cross_entropy(
    x, weight, labels, bias=None, *, class_weight=None, chunk_rows=1024, ignore_index=-100,
    label_smoothing=0.0, z_loss=0.0, softcap=None, reduction="mean", validate=False,
    axis_name=None,
):  # fmt: skip
    """The mean cross entropy of ``x @ weight.T + bias``, without materialising all logits.

    A loop makes the logits of ``chunk_rows`` rows at a time. Where a mean or a sum is
    differentiated, the gradients of x, weight and bias are made in the same loop, and scaled in
    the backward; with ``reduction="none"`` the backward makes the logits a second time. The options
    are static. Forward mode and second derivatives raise.

    Args:
        x: ``(rows, width)``; more axes in front are rows too.
        weight: ``(vocab, width)``.
        labels: int32 or int64, one for each row.
        bias: ``(vocab,)``, or None.
        class_weight: ``(vocab,)``, what :func:`membound.cross_entropy` calls ``weight``; or None.
            A constant.
        chunk_rows: how many rows have their logits at one time, at most.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; of the rows that this device has.
        axis_name: inside shard_map, the mesh axis that shards the vocabulary: the first axis of
            weight and of bias. Every device has the same x and all labels and class weights. One
            all-reduce of 8 bytes a row and device takes the place of a gather of logits, and one
            adds up the losses.
        ignore_index, label_smoothing, z_loss, softcap, validate: as of
            :func:`membound.cross_entropy`; ``validate`` not with ``axis_name``.

    Returns:
        The sum over rows that count, for the mean divided by that of their labels' class weights: a
        number in float32 (float64 for float64). With ``reduction="none"`` a loss for each row, of
        the shape of labels. Products are in the dtype of x, and the gradient of weight is summed
        chunk by chunk in its own.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.ones((3, 2)), jnp.zeros((4, 2))
    >>> round(float(linear_cross_entropy(x, weight, jnp.array([0, 1, -100]))), 4)
    1.3863
    """
    arrays = {
        "x": x, "weight": weight, "labels": labels, "bias": bias, "class_weight": class_weight,
    }  # fmt: skip
    _arguments.check_arrays("linear_cross_entropy", arrays)
    given = ignore_index, label_smoothing, z_loss, softcap, validate, reduction
    options = options_of("linear_cross_entropy", chunk_rows, axis_name, *given)
    return called(*arrays.values(), options)


def vocab_parallel_cross_entropy(
    logits, labels, axis_name, *, class_weight=None, ignore_index=-100, label_smoothing=0.0,
    z_loss=0.0, softcap=None, reduction="none",
):  # fmt: skip
    """:func:`membound.jax.cross_entropy` inside shard_map, of logits whose columns it shards.

    Each device has the same number of columns, and the labels, which count all columns, and class
    weights of all. One all-reduce of 8 bytes a row and device takes the place of a gather, and one
    adds up the losses. Reverse mode alone, first derivatives.

    Args:
        logits: ``(..., cols)``, the columns of this device.
        labels: the column of each row, int32 or int64, of the shape of logits less the last axis.
        axis_name: the mesh axis that shards the columns.
        class_weight: ``(all columns,)``, what :func:`membound.cross_entropy` calls ``weight``; or
            None. A constant.
        ignore_index, label_smoothing, z_loss, softcap, reduction: as of
            :func:`membound.cross_entropy`, of the rows that this device has.

    Returns:
        The losses as of :func:`membound.jax.cross_entropy`, on every device.

    >>> import jax, jax.numpy as jnp
    >>> call = jax.vmap(vocab_parallel_cross_entropy, (0, None, None), axis_name="vocab")
    >>> losses = call(jnp.zeros((1, 2, 4)), jnp.array([0, 3]), "vocab")  # of one device
    >>> [round(float(loss), 4) for loss in losses[0]]
    [1.3863, 1.3863]
    """
    op = "vocab_parallel_cross_entropy"
    arrays = {"logits": logits, "labels": labels, "class_weight": class_weight}
    _arguments.check_arrays(op, arrays)
    given = ignore_index, label_smoothing, z_loss, softcap, False, reduction
    options = options_of(op, 1, axis_name, *given)
    return _jitted_parallel(logits, labels, class_weight, options)


def called(*given):
    """The results of arrays, then options."""
    options = given[-1].loss
    try:
        return _ffi.validated(options.validate, _jitted, *given)
    except ValueError as error:
        raise _named(options.op, error) from None


def _named(op, error):
    """An error of cross_entropy with the name of the function that was called."""
    return type(error)(re.sub("^cross_entropy:", f"{op}:", str(error)))


def options_of(op, chunk_rows, axis_name, *given):
    *given, validate, reduction = given
    reduction = _arguments.choice(op, reduction, "reduction", ("none", "sum", "mean"))
    chunk_rows = _arguments.index(op, chunk_rows, "chunk_rows")
    if chunk_rows < 1:
        raise ValueError(f"{op}: argument 'chunk_rows' must be at least 1, got {chunk_rows}")
    try:
        kind = _cross_entropy.resolved
        found = _arguments.static("cross_entropy", kind, *given, "none", validate, *[False] * 3)
    except (TypeError, ValueError) as error:
        raise _named(op, error) from None
    if validate and axis_name is not None:
        raise ValueError(f"{op}: argument 'validate' must be False with 'axis_name', got True")
    backward = _arguments.options_of_backward(found)
    return _Options(chunk_rows, reduction, axis_name, found._replace(op=op), backward)


def _check(x, weight, labels, bias, class_weight, options):
    op = options.loss.op
    _arguments.check_rows(op, x, "x")
    _arguments.check_floating(op, weight, "weight")
    if weight.ndim != 2 or weight.shape[0] == 0 or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"{op}: argument 'weight' must have shape (vocab, {x.shape[-1]}), as wide as 'x' and "
            f"not empty, got {weight.shape}"
        )
    if bias is not None:
        _arguments.check_floating(op, bias, "bias")
        if bias.shape != weight.shape[:1]:
            raise ValueError(
                f"{op}: argument 'bias' must have shape {weight.shape[:1]}, got {bias.shape}"
            )
    logits = _logits_like(x.shape[:-1], weight.shape[0], x.dtype, options)
    _cross_entropy.check(logits, labels, class_weight, options.loss, "class_weight")


@functools.partial(jax.jit, static_argnums=5)
def _jitted(x, weight, labels, bias, class_weight, options):
    _check(x, weight, labels, bias, class_weight, options)
    class_weight = None if class_weight is None else lax.stop_gradient(class_weight)
    given = _sharding.vary_together(x, weight, bias, labels, class_weight)
    function = _rows if options.reduction == "none" else _total
    return _summed(function(*given, options), options)


@functools.partial(jax.jit, static_argnums=3)
def _jitted_parallel(logits, labels, class_weight, options):
    _arguments.check_rows(options.loss.op, logits, "logits")
    whole = _logits_like(logits.shape[:-1], logits.shape[-1], logits.dtype, options)
    _cross_entropy.check(whole, labels, class_weight, options.loss, "class_weight")
    class_weight = None if class_weight is None else lax.stop_gradient(class_weight)
    given = _sharding.vary_together(logits, labels, class_weight)
    loss = _summed(_of_logits(*given, options), options)
    if options.reduction != "none":
        loss = loss.sum()
    if options.reduction == "mean":
        loss = loss / _counted(whole, labels, class_weight, options)
    return loss


def _logits_like(rows, cols, dtype, options):
    """The shape and dtype of the logits of all devices."""
    devices = 1 if options.axis_name is None else lax.psum(1, options.axis_name)
    return jax.ShapeDtypeStruct((*rows, cols * devices), dtype)


def _summed(parts, options):
    return parts if options.axis_name is None else lax.psum(parts, options.axis_name)


def _counted(logits, labels, class_weight, options):
    return _cross_entropy.label_weights(logits, labels, class_weight, options.loss).sum()


# --- one chunk of rows ---


def _logits(x, weight, bias, options):
    if options.temperature == 1:
        logits = x @ weight.T.astype(x.dtype)
        return logits if bias is None else logits + bias.astype(x.dtype)
    wide = _ffi.statistics_dtype(x)
    logits = jnp.matmul(x, weight.T.astype(x.dtype), preferred_element_type=wide)
    logits = logits if bias is None else logits + bias.astype(wide)
    return (logits / options.temperature).astype(x.dtype)


def _losses(logits, labels, class_weight, options):
    """The loss of each row, or this device's part of it, lse, and so the entropy if wanted."""
    given = logits, labels, class_weight, options.loss
    if options.axis_name is not None:
        return _vocab_shards.forward(*given, options.axis_name, options.entropy)
    loss, lse, _, _, *entropy = _cross_entropy.forward_call(*given, options.entropy)
    return loss, lse, *entropy


def _slopes(logits, labels, class_weight, options, dloss, lse, *entropies):
    """The gradient of logits; entropies: themselves and their gradient."""
    given = dloss, logits, labels, lse, class_weight, options.gradient
    if options.axis_name is not None:
        return _vocab_shards.backward(*given, options.axis_name, *entropies)
    return _cross_entropy.backward_call(*given, *entropies)


def _chunked(x, labels, *of_rows, options):
    """Chunks of rows, which take every n-th, so that devices that share the rows share each chunk.

    The last rows of the last chunks are added and ignored.
    """
    rows, labels = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
    count = max(1, math.ceil(len(rows) / options.chunk_rows))
    more = -len(rows) % count

    def cut(values, fill):
        values = jnp.pad(values, [(0, more), *[(0, 0)] * (values.ndim - 1)], constant_values=fill)
        return values.reshape(-1, count, *values.shape[1:]).swapaxes(0, 1)

    return cut(rows, 0), cut(labels, options.loss.ignore_index), *(cut(o, 0) for o in of_rows)


def _joined(chunks, shape):
    """What _chunked cut, of that shape again."""
    rows = chunks.swapaxes(0, 1).reshape(-1, *chunks.shape[2:])
    return rows[: math.prod(shape)].reshape(*shape, *chunks.shape[2:])


def _gradients(x, weight, bias, labels, class_weight, options, of_rows=(), share=None):
    """dx, dweight and dbias, in one loop; and the losses' sum where there is nothing of_rows.

    of_rows: what _slopes takes of each row, beginning with the gradient of its loss.
    """

    def step(carry, chunk):
        dweight, dbias, total = carry
        x, labels, *of_rows = chunk
        logits = _logits(x, weight, bias, options)
        if not of_rows:
            loss, lse = _losses(logits, labels, class_weight, options)
            of_rows, total = (jnp.broadcast_to(share, loss.shape), lse), total + loss.sum()
        dlogits = _slopes(logits, labels, class_weight, options, *of_rows)
        dx = dlogits @ weight.astype(dlogits.dtype)
        dweight = dweight + (dlogits.T @ x).astype(weight.dtype)
        if bias is not None:
            dbias = dbias + dlogits.sum(0).astype(bias.dtype)
        return (dweight, dbias, total), dx

    of_rows = [each.reshape(-1, *each.shape[labels.ndim :]) for each in of_rows]
    zeros = jnp.zeros_like(weight), bias if bias is None else jnp.zeros_like(bias)
    total = jnp.zeros((), _ffi.statistics_dtype(x))
    start = _sharding.vary_together(*zeros, total, x)[:3]
    chunks = _chunked(x, labels, *of_rows, options=options)
    (dweight, dbias, total), dx = lax.scan(step, tuple(start), chunks)
    return total, (_joined(dx, x.shape[:-1]), dweight, dbias)


# --- the sum or mean ---


def _share(x, weight, labels, class_weight, options):
    """What each row's loss is multiplied by."""
    if options.reduction == "sum":
        return jnp.ones((), _ffi.statistics_dtype(x))
    logits = _logits_like(x.shape[:-1], weight.shape[0], x.dtype, options)
    return 1 / _counted(logits, labels, class_weight, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _total(x, weight, bias, labels, class_weight, options):
    losses = _rows_and_lse(x, weight, bias, labels, class_weight, options)[0]
    return losses.sum() * _share(x, weight, labels, class_weight, options)


def _total_saving(x, weight, bias, labels, class_weight, options):
    share = _share(x, weight, labels, class_weight, options)
    given = x, weight, bias, labels, class_weight, options
    total, gradients = _gradients(*given, share=share)
    return total * share, gradients


def _scaled(_, gradients, dloss):
    made = [g if g is None else (g * dloss).astype(g.dtype) for g in gradients]
    return *made, None, None


_total.defvjp(_total_saving, _scaled)


# --- a loss for each row ---


def _rows_and_lse(x, weight, bias, labels, class_weight, options):
    def one(chunk):
        x, labels = chunk
        return _losses(_logits(x, weight, bias, options), labels, class_weight, options)

    found = lax.map(one, _chunked(x, labels, options=options))
    return [_joined(each, labels.shape) for each in found]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _rows(x, weight, bias, labels, class_weight, options):
    losses, _, *entropies = _rows_and_lse(x, weight, bias, labels, class_weight, options)
    return (losses, *entropies) if entropies else losses


def _rows_saving(x, weight, bias, labels, class_weight, options):
    given = x, weight, bias, labels, class_weight
    losses, lse, *entropies = _rows_and_lse(*given, options)
    results = (losses, *entropies) if entropies else losses
    return results, (given, lse, [_summed(each, options) for each in entropies])


def _rows_gradient(options, saved, slopes):
    given, lse, entropies = saved
    dloss, *dentropies = (
        each / options.temperature for each in (slopes if options.entropy else [slopes])
    )
    _, gradients = _gradients(*given, options, [dloss, lse, *entropies, *dentropies])
    return *gradients, None, None


_rows.defvjp(_rows_saving, _rows_gradient)


# --- a loss for each row of logits ---


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _of_logits(logits, labels, class_weight, options):
    return _losses(logits, labels, class_weight, options)[0]


def _of_logits_saving(logits, labels, class_weight, options):
    loss, lse = _losses(logits, labels, class_weight, options)
    return loss, (logits, labels, class_weight, lse)


def _of_logits_gradient(options, saved, dloss):
    logits, labels, class_weight, lse = saved
    return _slopes(logits, labels, class_weight, options, dloss, lse), None, None


_of_logits.defvjp(_of_logits_saving, _of_logits_gradient)
