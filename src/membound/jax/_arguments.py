# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The core's argument checks with its error texts, run before XLA would wrap them in its own error.

Types are checked at every call. Shapes and dtypes are checked while tracing, which is free for
later calls.
"""

import ctypes
import functools
import math
import operator

import jax

from membound.arrays import dtype_name, type_name
from membound.jax._ffi import statistics_dtype
from membound.jax._handlers import HANDLERS

_FLOATING = ("float16", "bfloat16", "float32", "float64")
_QUANTISED = ("float8_e4m3fn", "float8_e5m2", "int8")
_OPTIONAL = (
    "weight", "bias", "scale", "dresidual_out", "mask", "up", "row_scale", "class_weight",
    "entropy", "dentropy",
)  # fmt: skip

_array_types: set[type] = set()  # isinstance(x, jax.Array) runs Python code: 0.3 us


def check_arrays(op, arrays):
    """All are jax arrays, like the first one; parameters may be None."""
    for argument, value in arrays.items():
        if type(value) in _array_types or (value is None and argument in _OPTIONAL):
            continue
        if not isinstance(value, jax.Array):
            first = next(iter(arrays))
            like = "" if argument == first else f" like '{first}'"
            raise TypeError(
                f"{op}: argument '{argument}' must be a jax array{like}, got {type_name(value)}"
            )
        if not isinstance(value, jax.core.Tracer):  # a tracer's type does not tell its dtype
            _array_types.add(type(value))


def number(op, value, argument):
    is_bool = str(getattr(value, "dtype", type(value).__name__)).endswith("bool")
    try:
        if hasattr(value, "__float__") and not is_bool:
            return float(value)
    except TypeError:  # an array of several
        pass
    except OverflowError:
        raise ValueError(f"{op}: argument '{argument}' must fit a double") from None
    raise TypeError(f"{op}: argument '{argument}' must be a real number, got {type_name(value)}")


def as_float32(value):
    return ctypes.c_float(value).value


def as_computed(value, dtype):
    """An option rounded as kernels for that dtype take it; infinite beyond float32's range."""
    return value if dtype == "float64" else as_float32(value)


def check_finite(op, value, argument, dtype):
    """Require a value that is finite once rounded for the kernel."""
    where = " in float32" if math.isfinite(value) else ""
    text = f"'{argument}' must be finite{where}, got {value:g}"
    _require(op, math.isfinite(as_computed(value, dtype)), text)


def check_limit(op, value, argument, dtype):
    """Require a positive value once rounded, and finite unless it was given as infinite."""
    computed = as_computed(value, dtype)
    where = " in float32" if value > 0.0 else ""
    _require(op, computed > 0.0, f"'{argument}' must be above 0{where}, got {value:g}")
    text = f"'{argument}' must be finite in float32, or infinite for none, got {value:g}"
    _require(op, math.isfinite(computed) or math.isinf(value), text)


def check_positive(op, value, argument, dtype):
    """Require a value that is finite and above 0, also once rounded for the kernel."""
    right = math.isfinite(value) and value > 0.0
    _require(op, right, f"'{argument}' must be finite and above 0, got {value:g}")
    check_finite(op, value, argument, dtype)
    check_limit(op, value, argument, dtype)


def check_eps(op, eps, dtype):
    """Require a finite, non-negative value that rounds to 0 only if it is 0."""
    _require(
        op, math.isfinite(eps) and eps >= 0.0, f"'eps' must be finite and not negative, got {eps:g}"
    )
    check_finite(op, eps, "eps", dtype)
    _require(op, eps == 0.0 or as_computed(eps, dtype) > 0.0,
             f"'eps' must be 0 or above 0 in float32, got {eps:g}")  # fmt: skip


def index(op, value, argument):
    """An integer of any type; an array has __index__, which may raise."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{op}: argument '{argument}' must be an integer, got {type_name(value)}")


def integer(op, value, argument):
    value = index(op, value, argument)
    _require(op, -(2**63) <= value < 2**63, f"'{argument}' must fit 64 bits")
    return value


def flag(op, value, argument):
    if not isinstance(value, bool):
        raise TypeError(f"{op}: argument '{argument}' must be a bool, got {type_name(value)}")
    return value


def integers(op, value, argument):
    """Some integers as a tuple, which is hashable."""
    try:
        numbers = tuple(value)
    except (TypeError, NotImplementedError):  # memoryviews with two axes
        raise TypeError(
            f"{op}: argument '{argument}' must be a sequence of integers, got {type_name(value)}"
        ) from None
    return tuple(integer(op, one, argument) for one in numbers)


def quantised(op, dtype, _):
    """The name of an 8-bit dtype, given by name or as an object of JAX or NumPy."""
    name = dtype_name(dtype)
    if name not in _QUANTISED:
        raise TypeError(
            f"{op}: argument 'dtype' must be float8_e4m3fn, float8_e5m2 or int8, got {dtype!r}"
        )
    return name


def floating(op, dtype, _):
    """The name of a result dtype, given by name or as an object of JAX or NumPy."""
    name = dtype_name(dtype)
    if name not in _FLOATING:
        raise TypeError(
            f"{op}: argument 'dtype' must be float16, bfloat16, float32 or float64, got {dtype!r}"
        )
    return name


def group_size(op, size, _):
    """64, 128, or 0 for None."""
    if size is None:
        return 0
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(
            f"{op}: argument 'group_size' must be 64, 128 or None, got {type_name(size)}"
        )
    size = operator.index(size)
    _require(op, size in (64, 128), f"'group_size' must be 64, 128 or None, got {size}")
    return size


def upper_bound(op, bound):
    """A number above 0; infinity for None."""
    bound = math.inf if bound is None else number(op, bound, "scale_upper_bound")
    check_limit(op, bound, "scale_upper_bound", "float32")
    return bound


def choice(op, value, argument, names):
    """One of these names."""
    if not isinstance(value, str) or value not in names:
        *first, last = map(repr, names)
        raise ValueError(
            f"{op}: argument '{argument}' must be {', '.join(first)} or {last}, got {value!r}"
        )
    return value


# The checks that HANDLERS names.
_CHECKS = {
    "number": number, "integer": integer, "flag": flag, "integers": integers,
    "group_size": group_size, "floating": floating, "quantised": quantised,
    "text": lambda _, value, __: value,
}  # fmt: skip


def _static(op, resolve, *values):
    """The options of a call, checked; static, so that each new combination compiles once."""
    _, _, kind, known = HANDLERS[op]
    found, given = {"op": op}, iter(values)
    for field, (argument, check, _) in known.items():
        if argument is None:
            continue
        value = next(given)
        if isinstance(check, tuple):
            found[field] = choice(op, value, argument, check)
        elif value is None and check.endswith("?"):
            found[field] = None
        else:
            found[field] = _CHECKS[check.strip("?")](op, value, argument)
    options = kind(**found)
    return resolve(options) if resolve else options


_cached = functools.lru_cache(maxsize=4096, typed=True)(_static)


def static(op, resolve, *values):
    """The same object for equal arguments; resolve, if given, changes what the checks return."""
    try:
        return _cached(op, resolve, *values)
    except (TypeError, ValueError):  # wrong, or unhashable: NumPy scalars, lists, memoryviews
        pass
    return _static(op, resolve, *values)


def options_of_backward(options):
    """The options of the gradient, as far as the forward has them."""
    op = f"{options.op}_backward"
    kind = HANDLERS[op][2]
    return kind(
        **{n: getattr(options, n) for n in kind._fields if hasattr(options, n)} | {"op": op}
    )


def named(function, run):
    """The function with the docstring and the module of the one that it calls."""
    function.__doc__, function.__module__ = run.__doc__, run.__module__
    function.__qualname__ = run.__qualname__
    return function


def check_forward(x, residual, z, weight, bias, options):
    op = options.op
    check_rows(op, x, "x")
    check_eps(op, options.eps, x.dtype)
    check_finite(op, options.weight_offset, "weight_offset", x.dtype)
    _check_rows_like(op, residual, "residual", x)
    _check_rows_like(op, z, "z", x)
    _check_columns(op, weight, "weight", x, "x")
    _check_columns(op, bias, "bias", x, "x")
    if weight is not None and bias is not None:
        _check_shape(op, bias, "bias", weight.shape)


def check_static_scale(scale, options):
    op = options.op
    if scale.dtype.name != "float32":
        raise TypeError(f"{op}: argument 'scale' must be float32, got {scale.dtype.name}")
    _require(
        op, scale.shape in ((), (1,)), f"'scale' must have shape () or (1,), got {scale.shape}"
    )
    _require(
        op,
        options.group_size == 0,
        f"'group_size' must be None with a static scale, got {options.group_size}",
    )
    _require(
        op,
        math.isinf(options.scale_upper_bound),
        f"'scale_upper_bound' must be None with a static scale, got {options.scale_upper_bound:g}",
    )


def check_backward(dy, dresidual_out, x, z, weight, mean, rstd, options):
    op = options.op
    x_name = "residual_out" if options.op.startswith("add_") else "x"
    check_rows(op, x, x_name)
    _check_rows_like(op, dy, "dy", x)
    _check_rows_like(op, dresidual_out, "dresidual_out", x)
    _check_rows_like(op, z, "z", x)
    _check_columns(op, weight, "weight", x, x_name)
    check_finite(op, options.weight_offset, "weight_offset", x.dtype)
    for name, statistic in (("mean", mean), ("rstd", rstd)):
        if statistic is not None:
            wide = statistic.dtype.name in ("float32", "float64")
            kind = statistic.dtype if wide else statistics_dtype(x)
            check_like(op, statistic, name, kind, x.shape[:-1])


def _check_rows_like(op, array, argument, x):
    if array is not None:
        check_floating(op, array, argument)
        _check_shape(op, array, argument, x.shape)


def _require(op, condition, text):
    if not condition:
        raise ValueError(f"{op}: argument {text}")


def check_rows(op, x, name):
    _require(op, x.ndim >= 1, f"'{name}' must have 1 to 64 axes, got {x.ndim}")
    _require(
        op,
        x.shape[-1] >= 1,
        f"'{name}' must have at least 1 element along its last axis, got shape {x.shape}",
    )
    check_floating(op, x, name)


def _check_weight_offset(op, weight, offset, dtype):
    check_finite(op, offset, "weight_offset", dtype)
    _require(
        op,
        weight is not None or offset == 0.0,
        f"'weight_offset' must be 0 without a weight, got {offset:g}",
    )


def _check_columns(op, array, argument, x, x_name):
    if array is None:
        return
    check_floating(op, array, argument)
    _require(
        op,
        array.shape == x.shape[-1:] or (x.ndim > 2 and array.shape == x.shape[-2:]),
        f"'{argument}' must have shape ({x.shape[-1]},), the last axis of '{x_name}', "
        f"or with three axes and more that of its last two, got {array.shape}",
    )


def check_like(op, array, argument, dtype, shape):
    if array.dtype != dtype:
        raise TypeError(f"{op}: argument '{argument}' must be {dtype.name}, got {array.dtype.name}")
    _check_shape(op, array, argument, shape)


def _check_shape(op, array, argument, shape):
    _require(op, array.shape == shape, f"'{argument}' must have shape {shape}, got {array.shape}")


def check_floating(op, array, argument):
    if array.dtype.name not in _FLOATING:
        raise TypeError(
            f"{op}: argument '{argument}' must be float16, bfloat16, float32 or float64, "
            f"got {array.dtype.name}"
        )
