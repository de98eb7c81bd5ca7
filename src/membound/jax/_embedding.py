# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Embedding lookup."""

import functools
import math
import operator
from typing import NamedTuple

import jax
import numpy as np

from membound.arrays import dtype_name, type_name
from membound.jax import _arguments, _ffi

_OP = "embedding"
_FLOATING = ("float16", "bfloat16", "float32", "float64")
_NAMES = "float16, bfloat16, float32 or float64"


class Options(NamedTuple):
    """What is static in a call."""

    padding_idx: int | None
    scale: float
    vocab_start: int
    validate: bool
    dtype: str | None


def embedding(
    ids, weight, *, position_ids=None, position_weight=None, padding_idx=None, scale=1.0,
    vocab_start=0, validate=False, dtype=None,
):  # fmt: skip
    """``weight[ids]``, scaled and with positions added if wanted.

    See :func:`membound.embedding` for the arguments. All but the arrays are static: each new
    combination compiles once. Differentiable in both tables, backwards: XLA adds up the rows of
    each id in float32 (float64), in its own order; padding_idx gets no gradient.

    >>> import jax.numpy as jnp
    >>> weight = jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> embedding(jnp.array([2, 0]), weight, scale=2.0).tolist()
    [[8.0, 10.0], [0.0, 2.0]]
    """
    arrays = {"weight": weight, "ids": ids, "position_ids": position_ids,
              "position_weight": position_weight}  # fmt: skip
    for name, value in arrays.items():
        optional = name.startswith("position")
        if not (isinstance(value, jax.Array) or (optional and value is None)):
            raise TypeError(f"{_OP}: argument '{name}' must be a jax array, got {type_name(value)}")
    options = Options(
        padding_idx=None if padding_idx is None else _id(padding_idx, "padding_idx"),
        scale=_arguments.number(_OP, scale, "scale"),
        vocab_start=_id(vocab_start, "vocab_start"),
        validate=_arguments.flag(_OP, validate, "validate"),
        dtype=_dtype(dtype),
    )
    _require(math.isfinite(options.scale), "scale", f"be finite, got {options.scale:g}")
    return _jitted(ids, weight, position_ids, position_weight, options)


def _require(condition, argument, text, error=ValueError):
    if not condition:
        raise error(f"{_OP}: argument '{argument}' must {text}")


def _id(value, argument):
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    _require(is_integer, argument, f"be an integer, got {type_name(value)}", TypeError)
    value = operator.index(value)
    _require(0 <= value < 1 << 62, argument, f"not be negative, and below 2**62, got {value}")
    return value


def _dtype(dtype):
    if dtype is None:
        return None
    name = dtype_name(dtype)
    _require(name in _FLOATING, "dtype", f"be {_NAMES}, got {dtype!r}", TypeError)
    return name


def _check_table(table, argument):
    shape = table.shape
    _require(len(shape) == 2 and min(shape) >= 1, argument,
             f"have 2 axes of at least 1 element, got shape {shape}")  # fmt: skip
    _require(table.dtype.name in _FLOATING, argument,
             f"be {_NAMES}, got {table.dtype.name}", TypeError)  # fmt: skip


def _check_integers(array, argument):
    _require(array.dtype.name in ("int32", "int64"), argument,
             f"be int32 or int64, got {array.dtype.name}", TypeError)  # fmt: skip


def _check(ids, weight, position_ids, position_weight, options):
    _check_table(weight, "weight")
    _check_integers(ids, "ids")
    wide = weight.dtype.name == "float64"
    _require(options.dtype is None or (options.dtype == "float64") == wide, "dtype",
             f"be {'float64' if wide else 'float16, bfloat16 or float32'} for a weight of "
             f"{weight.dtype.name}, got {options.dtype}", TypeError)  # fmt: skip
    if position_weight is None:
        _require(position_ids is None, "position_ids", "be None without 'position_weight'")
        return
    _check_table(position_weight, "position_weight")
    shape = (position_weight.shape[0], weight.shape[1])
    _arguments.check_like(_OP, position_weight, "position_weight", weight.dtype, shape)
    if position_ids is None:
        _require(ids.ndim > 0, "position_ids", "be given for 'ids' without an axis, got None")
        return
    _check_integers(position_ids, "position_ids")
    _require(position_ids.shape == ids.shape, "position_ids",
             f"have shape {ids.shape}, got {position_ids.shape}")  # fmt: skip


@functools.partial(jax.jit, static_argnums=4)
def _jitted(ids, weight, position_ids, position_weight, options):
    _check(ids, weight, position_ids, position_weight, options)
    return _embedding(ids, weight, position_ids, position_weight, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _embedding(ids, weight, position_ids, position_weight, options):
    kind = jax.numpy.dtype(options.dtype or weight.dtype)
    return _ffi.call(
        "membound_embedding",
        [jax.ShapeDtypeStruct((*ids.shape, weight.shape[1]), kind)],
        (ids, weight, position_ids, position_weight),
        rank=np.int32(ids.ndim),  # vmap puts axes in front
        position_ids=np.int32(position_ids is not None),
        position_weight=np.int32(position_weight is not None),
        scale=np.float64(options.scale),
        vocab_start=np.int64(options.vocab_start),
        validate=np.int32(options.validate),
    )[0]


def _forward(ids, weight, position_ids, position_weight, options):
    out = _embedding(ids, weight, position_ids, position_weight, options)
    return out, (ids, weight, position_ids, position_weight)


def _rows_of(ids, first, count):
    """The rows of a table of ids, `count` where it has none."""
    largest = int(np.iinfo(ids.dtype).max)
    if first > largest:
        return jax.numpy.full(ids.shape, count)
    inside = (ids >= first) & (ids <= min(first + count - 1, largest))
    return jax.numpy.where(inside, ids - first, count)


def _sum_of_rows(dy, rows, table):
    wide = _ffi.statistics_dtype(table)
    sums = jax.numpy.zeros(table.shape, wide)
    return sums.at[rows].add(dy.astype(wide), mode="drop").astype(table.dtype)


def _gradients(options, saved, dy):
    ids, weight, position_ids, position_weight = saved
    jnp = jax.numpy
    vocab = weight.shape[0]
    rows = _rows_of(ids, options.vocab_start, vocab)
    learned = rows
    if options.padding_idx is not None and options.padding_idx <= np.iinfo(ids.dtype).max:
        learned = jnp.where(ids == options.padding_idx, vocab, rows)
    wide = _ffi.statistics_dtype(weight)
    dweight = _sum_of_rows(dy.astype(wide) * options.scale, learned, weight)
    if position_weight is None:
        return None, dweight, None, None
    if position_ids is None:
        position_ids = jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)
    positions = position_weight.shape[0]
    places = jnp.where(rows < vocab, _rows_of(position_ids, 0, positions), positions)
    return None, dweight, None, _sum_of_rows(dy, places, position_weight)


_embedding.defvjp(_forward, _gradients)
