# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of the handlers that bindings/jax/ gives to XLA."""

import functools

import jax
import numpy as np

try:
    from jax import ffi
except ImportError:  # jax < 0.5
    from jax.extend import ffi

from membound import _core
from membound.jax import _sharding


def call(target, results, operands, **attributes):
    """Run a handler on operands, less those that are None; results are shapes with dtypes.

    "expand_dims" never copies what vmap did not map: the handler folds batch axes into rows, or
    takes the elements of a batch one by one where the weight or its gradient is mapped.
    """
    register()
    given = [one for one in operands if one is not None]
    results = [_sharding.shaped(r.shape, r.dtype, given) for r in results]
    function = ffi.ffi_call(target, results, vmap_method="expand_dims")
    return function(*given, **attributes)


def validated(wanted, function, *arguments):
    """``function(*arguments)``; if wanted, what the core says of values is a ValueError.

    Of arrays that are there, whose results are waited for. In a traced function there is nothing to
    look at: XLA raises when the program runs.
    """
    if wanted is not True:
        return function(*arguments)
    try:
        return jax.block_until_ready(function(*arguments))
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # before it runs, or while it does
        code, _, text = str(error).partition(": ")
        if code != "INVALID_ARGUMENT":
            raise
        raise ValueError(text) from None


@functools.cache
def register():
    for target, platforms in _core.jax_ffi_targets().items():
        for platform, capsule in platforms.items():
            ffi.register_ffi_target(target, capsule, platform=platform)


def like(x):
    """A result of x's shape and dtype."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def rows_of(x, *others):
    """A statistic of x's rows: the dtype of sums, float64 where one of the others is."""
    kinds = [statistics_dtype(one) for one in (x, *others) if one is not None]
    return jax.ShapeDtypeStruct(x.shape[:-1], max(kinds, key=lambda kind: kind.itemsize))


def as_dtype(x, dtype):
    """A result of x's shape and another dtype, by its name."""
    return jax.ShapeDtypeStruct(x.shape, jax.numpy.dtype(dtype))


def scales_of(x, group_size):
    """A scale for each row of x, or each group of columns of one."""
    *rows, cols = x.shape
    groups = () if group_size == 0 else (-(-cols // group_size),)
    return jax.ShapeDtypeStruct((*rows, *groups), np.float32)


def statistics_dtype(x):
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def columns_of(x):
    """A sum over x's rows."""
    return jax.ShapeDtypeStruct(x.shape[-1:], x.dtype)


def has_heads(parameter):
    """Whether a weight or bias is (heads, cols)."""
    return parameter is not None and len(parameter.shape) == 2


def sums_workspace(x, weight, *, centred, gated, mixed):
    """Room to sum dweight and dbias in on a GPU.

    The CPU gets it too and leaves it alone: while JAX traces, the platform is not known.
    """
    if centred:
        bytes_of = _core.layer_norm_backward_workspace
    elif gated:
        bytes_of = _core.rms_norm_gated_backward_workspace
    else:
        bytes_of = _core.rms_norm_backward_workspace
    cols = x.shape[-1]
    heads = weight.shape[0] if has_heads(weight) else 1
    size = bytes_of(x.size // cols, cols, x.dtype.itemsize, heads, mixed)
    return jax.ShapeDtypeStruct((size,), np.uint8)
