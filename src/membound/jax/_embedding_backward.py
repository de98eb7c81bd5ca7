# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding table."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from membound import _core
from membound.arrays import type_name
from membound.jax import _arguments, _ffi, _sharding, _tables

_OP = "embedding_backward"
_require = functools.partial(_tables.require, _OP)


class Sums(NamedTuple):
    """The static options of a call."""

    vocab: int
    padding_idx: int | None = None
    scale: float = 1.0
    scale_grad_by_freq: bool = False
    vocab_start: int = 0
    validate: bool = False
    dtype: str | None = None


def embedding_backward(
    dy, ids, vocab, *, padding_idx=None, scale=1.0, scale_grad_by_freq=False, vocab_start=0,
    validate=False, dtype=None,
):  # fmt: skip
    """The gradient of the table of :func:`embedding`, dense: ``(vocab, dim)``.

    See :func:`membound.embedding_backward` for the arguments. All but the arrays are static: each
    new combination compiles once. Under ``vmap`` every element of the batch has its own.

    >>> import jax.numpy as jnp
    >>> dy = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> embedding_backward(dy, jnp.array([2, 0, 2]), 3).tolist()
    [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]
    """
    for name, value in (("dy", dy), ("ids", ids)):
        _require(isinstance(value, jax.Array), name,
                 f"be a jax array, got {type_name(value)}", TypeError)  # fmt: skip
    vocab = _tables.number(_OP, vocab, "vocab")
    vocab_start = _tables.number(_OP, vocab_start, "vocab_start")
    sums = Sums(
        vocab=vocab,
        padding_idx=_tables.padding_id(_OP, padding_idx, vocab, vocab_start),
        scale=_arguments.number(_OP, scale, "scale"),
        scale_grad_by_freq=_arguments.flag(_OP, scale_grad_by_freq, "scale_grad_by_freq"),
        vocab_start=vocab_start,
        validate=_arguments.flag(_OP, validate, "validate"),
        dtype=_tables.floating_dtype(_OP, dtype),
    )
    return _ffi.validated(sums.validate, _jitted, dy, ids, sums)


def _check(dy, ids, sums):
    _tables.check_floating(_OP, dy, "dy")
    _tables.check_integers(_OP, ids, "ids")
    _arguments.check_finite(_OP, sums.scale, "scale", dy.dtype)
    _require(dy.ndim >= 1 and dy.shape[-1] >= 1, "dy", f"have columns, got shape {dy.shape}")
    _require(ids.shape == dy.shape[:-1], "ids",
             f"have shape {dy.shape[:-1]}, got {ids.shape}")  # fmt: skip
    _require(0 < sums.vocab < (1 << 31) - 1, "vocab", f"be from 1 to 2**31 - 2, got {sums.vocab}")
    _tables.check_result_dtype(_OP, sums.dtype, dy, "dy")


@functools.partial(jax.jit, static_argnums=2)
def _jitted(dy, ids, sums):
    _check(dy, ids, sums)
    return rows_summed(dy, ids, sums)


def rows_summed(dy, ids, sums):
    """The call itself, of checked arguments."""
    kind = jax.numpy.dtype(sums.dtype or dy.dtype)

    def run(dy, ids):
        dim = dy.shape[-1]
        # The CPU is passed it too and ignores it: the platform is unknown while JAX traces.
        bytes_ = _core.embedding_backward_workspace(ids.size, dim, sums.vocab, dy.dtype.itemsize)
        results = {
            "out": jax.ShapeDtypeStruct((sums.vocab, dim), kind),
            "workspace": jax.ShapeDtypeStruct((bytes_,), np.uint8) if bytes_ else None,
        }
        return _ffi.call(_OP, {"dy": dy, "ids": ids}, results, sums)[:1]

    if sums.scale_grad_by_freq:  # of all tokens
        return run(dy, ids)[0]
    rows = _sharding.rows_of(dy)
    table = _sharding.Result((None, _sharding.COLUMNS), rows)
    return _sharding.cut(run, (dy, ids), ((*rows, _sharding.COLUMNS), rows), [table])[0]
