# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The core's own checks in its own words, made before XLA would wrap them in an error of its own.

Kinds are checked at every call, shapes and dtypes while tracing: free for later calls.
"""

import math

import jax

from membound.arrays import type_name
from membound.jax._ffi import statistics_dtype

_FLOATING = ("float16", "bfloat16", "float32", "float64")

_array_types: set[type] = set()  # isinstance(x, jax.Array) runs Python code: 0.3 us


def check_arrays(op, arrays):
    """All are jax arrays, like the first one; a weight and a bias may be None."""
    for argument, value in arrays.items():
        if type(value) in _array_types or (value is None and argument in ("weight", "bias")):
            continue
        if not isinstance(value, jax.Array):
            first = next(iter(arrays))
            like = "" if argument == first else f" like '{first}'"
            raise TypeError(
                f"{op}: argument '{argument}' must be a jax array{like}, got {type_name(value)}"
            )
        if not isinstance(value, jax.core.Tracer):  # what it stands for, its type does not tell
            _array_types.add(type(value))


def number(op, value, argument):
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{op}: argument '{argument}' must be a real number, got {type_name(value)}"
        )
    return float(value)


def flag(op, value, argument):
    if not isinstance(value, bool):
        raise TypeError(f"{op}: argument '{argument}' must be a bool, got {type_name(value)}")
    return value


def before_weight(op, rounding):
    if not isinstance(rounding, str) or rounding not in ("once", "before_weight"):
        raise ValueError(
            f"{op}: argument 'rounding' must be 'once' or 'before_weight', got {rounding!r}"
        )
    return rounding == "before_weight"


def check_forward(x, residual, weight, bias, options):
    op, eps = options.op, options.eps
    _check_rows(op, x, "x")
    _require(
        op, math.isfinite(eps) and eps >= 0.0, f"'eps' must be finite and not negative, got {eps:g}"
    )
    _check_weight_offset(op, weight, options.weight_offset)
    if residual is not None:
        _check_like(op, residual, "residual", x.dtype, x.shape)
    _check_columns(op, weight, "weight", x, "x")
    _check_columns(op, bias, "bias", x, "x")


def check_backward(dy, dresidual_out, x, weight, mean, rstd, options):
    op = options.op
    x_name = "x" if dresidual_out is None else "residual_out"
    _check_rows(op, x, x_name)
    _check_like(op, dy, "dy", x.dtype, x.shape)
    if dresidual_out is not None:
        _check_like(op, dresidual_out, "dresidual_out", x.dtype, x.shape)
    _check_columns(op, weight, "weight", x, x_name)
    _check_weight_offset(op, weight, options.weight_offset)
    if mean is not None:
        _check_like(op, mean, "mean", statistics_dtype(x), x.shape[:-1])
    _check_like(op, rstd, "rstd", statistics_dtype(x), x.shape[:-1])


def _require(op, condition, text):
    if not condition:
        raise ValueError(f"{op}: argument {text}")


def _check_rows(op, x, name):
    _require(op, x.ndim >= 1, f"'{name}' must have 1 to 64 axes, got {x.ndim}")
    _require(
        op,
        x.shape[-1] >= 1,
        f"'{name}' must have at least 1 element along its last axis, got shape {x.shape}",
    )
    _check_floating(op, x, name)


def _check_weight_offset(op, weight, offset):
    _require(op, math.isfinite(offset), f"'weight_offset' must be finite, got {offset:g}")
    _require(
        op,
        weight is not None or offset == 0.0,
        f"'weight_offset' must be 0 without a weight, got {offset:g}",
    )


def _check_columns(op, array, argument, x, x_name):
    if array is None:
        return
    _check_floating(op, array, argument)
    _require(
        op,
        array.shape == x.shape[-1:],
        f"'{argument}' must have shape ({x.shape[-1]},), the last axis of '{x_name}', "
        f"got {array.shape}",
    )


def _check_like(op, array, argument, dtype, shape):
    if array.dtype != dtype:
        raise TypeError(f"{op}: argument '{argument}' must be {dtype.name}, got {array.dtype.name}")
    _require(op, array.shape == shape, f"'{argument}' must have shape {shape}, got {array.shape}")


def _check_floating(op, array, argument):
    if array.dtype.name not in _FLOATING:
        raise TypeError(
            f"{op}: argument '{argument}' must be float16, bfloat16, float32 or float64, "
            f"got {array.dtype.name}"
        )
