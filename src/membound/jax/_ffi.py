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
from membound.jax._handlers import HANDLERS


def call(op, operands, results, options):
    """Run op's handler. Operands and results, shapes with dtypes, by name; None: not there.

    Returns the results that are there, in the handler's order. "expand_dims" never copies operands
    that vmap did not map: the handler merges batch axes into rows, or loops over the batch if the
    weight or its gradient is mapped.
    """
    register()
    operand_names, result_names, *_ = HANDLERS[op]
    given, given_bits = _present(operand_names, operands)
    made, made_bits = _present(result_names, results)
    shaped = [_sharding.shaped(one.shape, one.dtype, given) for one in made]
    function = ffi.ffi_call(f"membound_{op}", shaped, vmap_method="expand_dims")
    rank = np.int32(len(made[0].shape))  # vmap adds leading axes
    return function(
        *given, operands=given_bits, results=made_bits, rank=rank, **attributes_of(op, options)
    )


def _present(names, arrays):
    """The arrays that are there, in this order, and a bit for each of these."""
    there = [arrays.get(name) is not None for name in names]
    bits = sum(is_there << at for at, is_there in enumerate(there))
    return [arrays[name] for name, one in zip(names, there, strict=True) if one], np.int32(bits)


def attributes_of(op, options):
    """The handler's attributes, of the fields of options that are not None."""
    found = {}
    for name, (_, check, to_xla) in HANDLERS[op][3].items():
        value = getattr(options, name)
        if to_xla is not None and value is not None:
            found[name] = to_xla(check.index(value) if isinstance(check, tuple) else value)
    return found


def validated(wanted, function, *arguments):
    """``function(*arguments)``; with validation, the core's errors on values become ValueError.

    This waits for the results of concrete arrays. In a traced function there are no values yet:
    XLA raises when the program runs.
    """
    if wanted is not True:
        return function(*arguments)
    try:
        return jax.block_until_ready(function(*arguments))
    except (ValueError, jax.errors.JaxRuntimeError) as error:  # raised before or during the run
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
    """A statistic per row of x, in the accumulator's dtype: float64 if any array is float64."""
    kinds = [statistics_dtype(one) for one in (x, *others) if one is not None]
    return jax.ShapeDtypeStruct(x.shape[:-1], max(kinds, key=lambda kind: kind.itemsize))


def as_dtype(x, dtype):
    """A result of x's shape and the named dtype."""
    return jax.ShapeDtypeStruct(x.shape, jax.numpy.dtype(dtype))


def scales_of(x, group_size):
    """A scale per row of x, or per group of columns of a row."""
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
    """Workspace for the partial sums of dweight and dbias on a GPU.

    The CPU is passed it too and ignores it: the platform is unknown while JAX traces.
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
