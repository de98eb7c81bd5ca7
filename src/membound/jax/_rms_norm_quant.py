# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with a quantised result, alone and after a residual addition."""

import functools
from typing import NamedTuple

import jax

from membound.jax import _arguments, _ffi, _sharding
from membound.jax._norm import axes_of, static


class Quantised(NamedTuple):
    """The static options of a call."""

    op: str
    dtype: str
    group_size: int
    scale_upper_bound: float
    eps: float
    weight_offset: float
    rounding: str


@static
def _options(op, dtype, group_size, scale_upper_bound, eps, weight_offset, rounding):
    return Quantised(
        op=op,
        dtype=_arguments.quantised(op, dtype),
        group_size=_arguments.group_size(op, group_size),
        scale_upper_bound=_arguments.upper_bound(op, scale_upper_bound),
        eps=_arguments.number(op, eps, "eps"),
        weight_offset=_arguments.number(op, weight_offset, "weight_offset"),
        rounding=_arguments.rounding(op, rounding),
    )


@functools.partial(jax.jit, static_argnums=4)
def _jitted(x, residual, weight, scale, options):
    """Return out, residual_out in the added form, and the scales unless the scale is static."""
    _arguments.check_forward(x, residual, None, weight, None, options)
    if scale is not None:
        _arguments.check_static_scale(scale, options)
    return _quantised(*_sharding.vary_together(x, residual, weight, scale), options)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _quantised(x, residual, weight, scale, options):
    added, is_static = residual is not None, scale is not None

    def run(x, residual, weight, scale):
        arrays = {"x": x, "residual": residual, "weight": weight, "scale": scale}
        results = {
            "out": _ffi.as_dtype(x, options.dtype),
            "residual_out": _ffi.like(x) if added else None,
            "scale_out": None if is_static else _ffi.scales_of(x, options.group_size),
        }
        return _ffi.call(options.op, arrays, results, options)

    _, rows, columns = axes_of(x, weight)
    results = [_sharding.Result(rows)] * (1 + added + (not is_static))
    operands = (x, residual, weight, scale)
    return _sharding.cut(run, operands, (rows, rows, columns[:-1], ()), results)


@_quantised.defjvp
def _no_gradient(options, *_):
    raise TypeError(
        f"{options.op}: a quantised result has no gradient; apply jax.lax.stop_gradient to the "
        "arguments, or differentiate the norm itself"
    )


def rms_norm_quant(
    x, weight=None, *, dtype="float8_e4m3fn", scale=None, group_size=None, scale_upper_bound=None,
    eps=1e-6, weight_offset=0.0, rounding="once",
):  # fmt: skip
    """Root mean square normalisation with a result of 8 bits and its scales, in one pass.

    Returns ``(out, scale)``, with a static scale ``out`` alone; see :func:`membound.rms_norm_quant`
    for the arguments. All but the arrays are static: each new combination compiles once. It has no
    gradient.

    >>> import jax.numpy as jnp
    >>> out, scale = rms_norm_quant(jnp.array([[3.0, 4.0]]), dtype="int8", eps=12.5)
    >>> out.tolist(), scale.shape
    ([[95, 127]], (1,))
    """
    op = "rms_norm_quant"
    _arguments.check_arrays(op, {"x": x, "weight": weight, "scale": scale})
    options = _options(op, dtype, group_size, scale_upper_bound, eps, weight_offset, rounding)
    results = _jitted(x, None, weight, scale, options)
    return results[0] if scale is not None else tuple(results)


def add_rms_norm_quant(
    x, residual, weight=None, *, dtype="float8_e4m3fn", scale=None, group_size=None,
    scale_upper_bound=None, eps=1e-6, weight_offset=0.0, rounding="once",
):  # fmt: skip
    """Residual addition and root mean square normalisation with a result of 8 bits, in one pass.

    Returns ``(out, residual_out, scale)``, with a static scale ``(out, residual_out)``; see
    :func:`membound.add_rms_norm_quant`. All but the arrays are static. It has no gradient.

    >>> import jax.numpy as jnp
    >>> x, residual = jnp.array([[1.0, 2.0]]), jnp.array([[2.0, 2.0]])
    >>> out, total, scale = add_rms_norm_quant(x, residual, dtype="int8", eps=12.5)
    >>> out.tolist(), total.tolist()
    ([[95, 127]], [[3.0, 4.0]])
    """
    op = "add_rms_norm_quant"
    arrays = {"x": x, "residual": residual, "weight": weight, "scale": scale}
    _arguments.check_arrays(op, arrays)
    options = _options(op, dtype, group_size, scale_upper_bound, eps, weight_offset, rounding)
    return tuple(_jitted(x, residual, weight, scale, options))
