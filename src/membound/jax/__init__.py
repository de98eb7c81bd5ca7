# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound's ops as JAX functions: eager, under jit and under vmap, on CPU and CUDA arrays.

They run through XLA's typed foreign function interface: XLA allocates the outputs, orders the work
on its own stream and may capture it in a CUDA graph. Handlers are registered at the first call.
"""

import functools
import math
from typing import NamedTuple

import jax
import numpy as np

try:
    from jax import ffi
except ImportError:  # jax < 0.5
    from jax.extend import ffi

from membound import _core
from membound.arrays import type_name

__all__ = ["rms_norm"]

_FLOATING = ("float16", "bfloat16", "float32", "float64")


class _RmsNormOptions(NamedTuple):
    eps: float
    weight_offset: float
    before_weight: bool
    return_rstd: bool


def rms_norm(x, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", return_rstd=False):
    """Root mean square normalisation over the last axis.

    ``x / sqrt(mean(x * x) + eps) * (weight + weight_offset)``, see :func:`membound.rms_norm` for
    the arguments. The scalars are static: each new combination compiles once. Returns an array of
    x's shape and dtype, or with ``return_rstd=True`` the pair of it and
    ``1 / sqrt(mean(x * x) + eps)`` in float32 (float64 for float64).

    There is no gradient yet; asking for one raises NotImplementedError.

    >>> import jax.numpy as jnp
    >>> rms_norm(jnp.array([3.0, 4.0]), eps=0.0).round(4).tolist()
    [0.8485000133514404, 1.1313999891281128]
    """
    if type(x) not in _array_types:
        _check_array(x, "x")
    if weight is not None and type(weight) not in _array_types:
        _check_array(weight, "weight")
    try:
        options = _options(eps, weight_offset, rounding, return_rstd)
    except TypeError:  # unhashable: a NumPy scalar array is a number all the same, a list is not
        options = _options.__wrapped__(eps, weight_offset, rounding, return_rstd)
    return _jitted_rms_norm(x, weight, options)


# Un-jitted, ffi_call costs 190 us a call; behind jit a call costs what a jitted add does.
@functools.partial(jax.jit, static_argnums=2)
def _jitted_rms_norm(x, weight, options):
    _check_rms_norm(x, weight, options)  # while tracing: free for later calls of these shapes
    results = _rms_norm_call(x, weight, options)
    return tuple(results) if options.return_rstd else results[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _rms_norm_call(x, weight, options):
    _register()
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    if options.return_rstd:
        statistic = np.float64 if x.dtype == np.float64 else np.float32
        results.append(jax.ShapeDtypeStruct(x.shape[:-1], statistic))
    # "expand_dims" never copies what vmap did not map: the handler folds batch axes into rows, and
    # takes one weight per batch element where the weight is mapped.
    call = ffi.ffi_call("membound_rms_norm", results, vmap_method="expand_dims")
    operands = (x,) if weight is None else (x, weight)
    return call(
        *operands,
        eps=np.float64(options.eps),
        weight_offset=np.float64(options.weight_offset),
        rounding=np.int32(options.before_weight),
    )


@_rms_norm_call.defjvp
def _refuse_gradient(options, primals, tangents):
    raise NotImplementedError(
        "rms_norm: membound.jax has no gradient for it yet; wrap x in jax.lax.stop_gradient where "
        "none is needed"
    )


@functools.cache
def _register():
    for target, platforms in _core.jax_ffi_targets().items():
        for platform, capsule in platforms.items():
            ffi.register_ffi_target(target, capsule, platform=platform)


_array_types: set[type] = set()  # isinstance(x, jax.Array) runs Python code: 0.3 us


def _check_array(value, argument):
    if not isinstance(value, jax.Array):
        like = "" if argument == "x" else " like 'x'"
        raise TypeError(
            f"rms_norm: argument '{argument}' must be a jax array{like}, got {type_name(value)}"
        )
    if not isinstance(value, jax.core.Tracer):  # what a tracer stands for, its type does not tell
        _array_types.add(type(value))


@functools.lru_cache(typed=True)
def _options(eps, weight_offset, rounding, return_rstd):
    if not isinstance(rounding, str) or rounding not in ("once", "before_weight"):
        raise ValueError(
            f"rms_norm: argument 'rounding' must be 'once' or 'before_weight', got {rounding!r}"
        )
    if not isinstance(return_rstd, bool):
        raise TypeError(
            f"rms_norm: argument 'return_rstd' must be a bool, got {type_name(return_rstd)}"
        )
    return _RmsNormOptions(
        eps=_number(eps, "eps"),
        weight_offset=_number(weight_offset, "weight_offset"),
        before_weight=rounding == "before_weight",
        return_rstd=return_rstd,
    )


def _number(value, argument):
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(
            f"rms_norm: argument '{argument}' must be a real number, got {type_name(value)}"
        )
    return float(value)


def _check_rms_norm(x, weight, options):
    """The core's own checks, made before XLA would wrap them in an error of its own."""
    _check(x.ndim >= 1, f"'x' must have 1 to 64 axes, got {x.ndim}")
    _check(
        x.shape[-1] >= 1,
        f"'x' must have at least 1 element along its last axis, got shape {x.shape}",
    )
    _check_floating(x, "x")
    eps, weight_offset = options.eps, options.weight_offset
    _check(math.isfinite(eps) and eps >= 0.0, f"'eps' must be finite and not negative, got {eps:g}")
    _check(math.isfinite(weight_offset), f"'weight_offset' must be finite, got {weight_offset:g}")
    if weight is None:
        _check(
            weight_offset == 0.0,
            f"'weight_offset' must be 0 without a weight, got {weight_offset:g}",
        )
        return
    _check_floating(weight, "weight")
    _check(
        weight.shape == x.shape[-1:],
        f"'weight' must have shape ({x.shape[-1]},), the last axis of 'x', got {weight.shape}",
    )


def _check(condition, text):
    if not condition:
        raise ValueError(f"rms_norm: argument {text}")


def _check_floating(array, argument):
    if array.dtype.name not in _FLOATING:
        raise TypeError(
            f"rms_norm: argument '{argument}' must be float16, bfloat16, float32 or float64, "
            f"got {array.dtype.name}"
        )
