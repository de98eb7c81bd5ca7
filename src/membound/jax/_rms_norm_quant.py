# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with a quantised result, alone and after a residual addition."""

import functools

import jax

from membound.jax import _arguments, _ffi, _sharding, _signatures
from membound.jax._norm import axes_of


def resolved(options):
    """The options with a number for no bound."""
    bound = _arguments.upper_bound(options.op, options.scale_upper_bound)
    return options._replace(scale_upper_bound=bound)


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


def _run(arrays, options):
    _arguments.check_arrays(options.op, arrays)
    given = map(arrays.get, ("x", "residual", "weight", "scale"))
    return tuple(_jitted(*given, options))


@functools.partial(_signatures.rms_norm_quant, resolve=resolved)
def rms_norm_quant(arrays, options):
    """Root mean square normalisation with a result of 8 bits and its scales, in one pass.

    Returns ``(out, scale)``, with a static scale ``out`` alone; see :func:`membound.rms_norm_quant`
    for the arguments. All but the arrays are static: each new combination compiles once. It has no
    gradient.

    >>> import jax.numpy as jnp
    >>> out, scale = rms_norm_quant(jnp.array([[3.0, 4.0]]), dtype="int8", eps=12.5)
    >>> out.tolist(), scale.shape
    ([[95, 127]], (1,))
    """
    results = _run(arrays, options)
    return results if len(results) > 1 else results[0]


@functools.partial(_signatures.add_rms_norm_quant, resolve=resolved)
def add_rms_norm_quant(arrays, options):
    """Residual addition and root mean square normalisation with a result of 8 bits, in one pass.

    Returns ``(out, residual_out, scale)``, with a static scale ``(out, residual_out)``; see
    :func:`membound.add_rms_norm_quant`. All but the arrays are static. It has no gradient.

    >>> import jax.numpy as jnp
    >>> x, residual = jnp.array([[1.0, 2.0]]), jnp.array([[2.0, 2.0]])
    >>> out, total, scale = add_rms_norm_quant(x, residual, dtype="int8", eps=12.5)
    >>> out.tolist(), total.tolist()
    ([[95, 127]], [[3.0, 4.0]])
    """
    return _run(arrays, options)
