# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Embedding lookup."""

import functools

import jax
import numpy as np

from membound.arrays import type_name
from membound.jax import _arguments, _ffi, _sharding, _signatures, _tables
from membound.jax._embedding_backward import rows_summed
from membound.jax._handlers import EmbeddingBackward

_OP = "embedding"
_require = functools.partial(_tables.require, _OP)


@_signatures.embedding
def embedding(arrays, options):
    """``weight[ids]``, scaled and with positions added if wanted.

    See :func:`membound.embedding` for the arguments. All but the arrays are static: each new
    combination compiles once. Differentiable in both tables, backwards: their gradients are
    :func:`embedding_backward`'s, dense; padding_idx gets none. ``validate`` waits for the result;
    inside jit XLA raises what it finds when the program runs, as ValueError or
    ``jax.errors.JaxRuntimeError``.

    >>> import jax.numpy as jnp
    >>> weight = jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> embedding(jnp.array([2, 0]), weight, scale=2.0).tolist()
    [[8.0, 10.0], [0.0, 2.0]]
    """
    for name in ("weight", "ids", "position_ids", "position_weight"):
        value, optional = arrays[name], name.startswith("position")
        if not (isinstance(value, jax.Array) or (optional and value is None)):
            raise TypeError(f"{_OP}: argument '{name}' must be a jax array, got {type_name(value)}")
    options = _tables.resolved(options, (arrays["weight"].shape or (0,))[0])
    return _ffi.validated(options.validate, _jitted, *arrays.values(), options)


def _check_table(table, argument):
    shape = table.shape
    _require(len(shape) == 2 and min(shape) >= 1, argument,
             f"have 2 axes of at least 1 element, got shape {shape}")  # fmt: skip
    _tables.check_floating(_OP, table, argument)


def _check(ids, weight, position_ids, position_weight, options):
    _check_table(weight, "weight")
    _tables.check_integers(_OP, ids, "ids")
    _arguments.check_finite(_OP, options.scale, "scale", weight.dtype)
    _tables.check_result_dtype(_OP, options.dtype, weight, "weight")
    if position_weight is None:
        _require(position_ids is None, "position_ids", "be None without 'position_weight'")
        return
    _check_table(position_weight, "position_weight")
    shape = (position_weight.shape[0], weight.shape[1])
    _arguments.check_like(_OP, position_weight, "position_weight", weight.dtype, shape)
    if position_ids is None:
        _require(ids.ndim > 0, "position_ids", "be given for 'ids' without an axis, got None")
        return
    _tables.check_integers(_OP, position_ids, "position_ids")
    _require(position_ids.shape == ids.shape, "position_ids",
             f"have shape {ids.shape}, got {position_ids.shape}")  # fmt: skip


@functools.partial(jax.jit, static_argnums=4)
def _jitted(ids, weight, position_ids, position_weight, options):
    _check(ids, weight, position_ids, position_weight, options)
    operands = _sharding.vary_together(ids, weight, position_ids, position_weight)
    return _embedding(*operands, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _embedding(ids, weight, position_ids, position_weight, options):
    kind = jax.numpy.dtype(options.dtype or weight.dtype)

    def run(ids, weight, position_ids, position_weight):
        arrays = {
            "ids": ids, "weight": weight, "position_ids": position_ids,
            "position_weight": position_weight,
        }  # fmt: skip
        out = jax.ShapeDtypeStruct((*ids.shape, weight.shape[1]), kind)
        return _ffi.call(_OP, arrays, {"out": out}, options)

    operands = (ids, weight, position_ids, position_weight)
    rows = tuple(f"r{at}" for at in range(ids.ndim))
    if position_ids is None and position_weight is not None:  # the last axis counts positions
        rows = (*rows[:-1], None)
    table = (None, _sharding.COLUMNS)
    of_out = _sharding.Result((*rows, _sharding.COLUMNS))
    return _sharding.cut(run, operands, (rows, table, rows, table), [of_out])[0]


def _forward(ids, weight, position_ids, position_weight, options):
    out = _embedding(ids, weight, position_ids, position_weight, options)
    return out, (ids, weight, position_ids, position_weight)


def _gradients(options, saved, dy):
    ids, weight, position_ids, position_weight = saved
    jnp = jax.numpy
    vocab = weight.shape[0]
    learned = _arguments.options_of_backward(options)._replace(
        vocab=vocab, validate=False, dtype=weight.dtype.name
    )
    dweight = rows_summed(dy, ids, learned)
    if position_weight is None:
        return None, dweight, None, None
    if position_ids is None:
        position_ids = jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)
    places = jnp.where(_has_row(ids, options.vocab_start, vocab), position_ids, -1)
    positions = EmbeddingBackward(
        learned.op, vocab=position_weight.shape[0], dtype=position_weight.dtype.name
    )
    return None, dweight, None, rows_summed(dy, places, positions)


def _has_row(ids, first, count):
    """Whether each id is a row of the table."""
    largest = int(np.iinfo(ids.dtype).max)
    if first > largest:
        return jax.numpy.zeros(ids.shape, bool)
    return (ids >= first) & (ids <= min(first + count - 1, largest))


_embedding.defvjp(_forward, _gradients)
