# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of ops that compute each element by itself: any of their axes may be sharded."""

import functools

import jax

from membound.jax import _arguments, _ffi, _sharding


def call(op, arrays, numbers):
    """Run op, a gradient if its name ends so; arrays and numbers by name. All arrays are alike."""
    _arguments.check_arrays(op, arrays)
    numbers = tuple((n, _arguments.number(op, value, n)) for n, value in numbers.items())
    return _jitted(op, tuple(arrays), numbers, *arrays.values())


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _jitted(op, names, numbers, *arrays):
    like, last = arrays[-1], names[-1]
    _arguments.check_rows(op, like, last)
    for array, name in zip(arrays[:-1], names, strict=False):
        _arguments.check_like(op, array, name, like.dtype, like.shape)
    for name, value in numbers:
        _arguments.check_positive(op, value, name, like.dtype)
    arrays = _sharding.vary_together(*arrays)
    return _run(op, numbers, *arrays) if len(arrays) > 1 else _differentiable(*arrays, op, numbers)


def _run(op, numbers, *arrays):
    names, (result,), *_ = _ffi.HANDLERS[op]
    options = _ffi.HANDLERS[op][2](op, **dict(numbers))

    def run(*given):
        operands = dict(zip(names, given, strict=True))
        return _ffi.call(op, operands, {result: _ffi.like(given[-1])}, options)

    axes = (*_sharding.rows_of(arrays[0]), _sharding.COLUMNS)
    return _sharding.cut(run, arrays, [axes] * len(arrays), [_sharding.Result(axes)])[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _differentiable(x, op, numbers):
    return _run(op, numbers, x)


def _saving(x, op, numbers):
    return _run(op, numbers, x), x


def _gradient(op, numbers, x, dy):
    return (_run(f"{op}_backward", numbers, dy, x),)


_differentiable.defvjp(_saving, _gradient)
