# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding table."""

import functools

import jax
import numpy as np

from membound import _core
from membound.arrays import type_name
from membound.jax import _arguments, _ffi, _sharding, _signatures, _tables

_OP = "embedding_backward"
_require = functools.partial(_tables.require, _OP)


@_signatures.embedding_backward
def embedding_backward(arrays, options):
    """The gradient of the table of :func:`embedding`, dense: ``(vocab, dim)``.

    See :func:`membound.embedding_backward` for the arguments. All but the arrays are static: each
    new combination compiles once. Under ``vmap`` every element of the batch has its own.

    >>> import jax.numpy as jnp
    >>> dy = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> embedding_backward(dy, jnp.array([2, 0, 2]), 3).tolist()
    [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]
    """
    for name, value in arrays.items():
        _require(isinstance(value, jax.Array), name,
                 f"be a jax array, got {type_name(value)}", TypeError)  # fmt: skip
    options = options._replace(vocab=_tables.number(_OP, options.vocab, "vocab"))
    options = _tables.resolved(options, options.vocab)
    return _ffi.validated(options.validate, _jitted, *arrays.values(), options)


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
