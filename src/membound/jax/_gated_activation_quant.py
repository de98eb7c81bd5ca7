# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations with a quantised result."""

import functools

import jax

from membound.jax import _arguments, _ffi, _sharding, _signatures
from membound.jax import _gated_activation as activation
from membound.jax import _rms_norm_quant as quantisation


def _resolved(options):
    return activation.resolved(quantisation.resolved(options))


@functools.partial(_signatures.gated_activation_quant, resolve=_resolved)
def gated_activation_quant(arrays, options):
    """A gated activation with a result of 8 bits and its scales, in one pass.

    Returns ``(out, scale)``, with a static scale ``out`` alone; see
    :func:`membound.gated_activation_quant` for the arguments. All but the arrays are static: each
    new combination compiles once. It has no gradient.

    >>> import jax.numpy as jnp
    >>> out, scale = gated_activation_quant(jnp.array([[1.0, -1.0, 3.0, 4.0]]), dtype="int8")
    >>> out.tolist(), scale.shape
    ([[127, -62]], (1,))
    """
    activation.check_kinds(arrays, options)
    results = _jitted(*map(arrays.get, ("gate", "up", "row_scale", "scale")), options)
    return tuple(results) if len(results) > 1 else results[0]


@functools.partial(jax.jit, static_argnums=4)
def _jitted(gate, up, row_scale, scale, options):
    activation.check_inputs(gate, up, row_scale, options)
    if scale is not None:
        _arguments.check_static_scale(scale, options)
    return _quantised(*_sharding.vary_together(gate, up, row_scale, scale), options)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _quantised(gate, up, row_scale, scale, options):
    def run(gate, up, row_scale, scale):
        cols = activation.cols_of(gate, up, options)
        values = jax.ShapeDtypeStruct((*gate.shape[:-1], cols), gate.dtype)
        arrays = {"gate": gate, "up": up, "row_scale": row_scale, "scale": scale}
        results = {
            "out": _ffi.as_dtype(values, options.dtype),
            "scale_out": _ffi.scales_of(values, options.group_size) if scale is None else None,
        }
        return _ffi.call("gated_activation_quant", arrays, results, options)

    rows, operands = _sharding.rows_of(gate), (gate, up, row_scale, scale)
    results = [_sharding.Result(rows)] * (1 if scale is not None else 2)
    return _sharding.cut(run, operands, (rows, rows, rows, ()), results)


@_quantised.defjvp
def _no_gradient(options, *_):
    raise TypeError(
        f"{options.op}: a quantised result has no gradient; apply jax.lax.stop_gradient to the "
        "arguments, or differentiate gated_activation itself"
    )


def silu_and_mul_quant(gate, up=None, **options):
    """:func:`gated_activation_quant` with ``kind="silu"``.

    >>> import jax.numpy as jnp
    >>> out, scale = silu_and_mul_quant(jnp.array([[1.0, -1.0, 3.0, 4.0]]), dtype="int8")
    >>> out.tolist()
    [[127, -62]]
    """
    try:
        return gated_activation_quant(gate, up, kind="silu", **options)
    except (TypeError, ValueError) as error:  # errors name the function that was called
        told = str(error).removeprefix("gated_activation_quant: ")
        raise type(error)(f"silu_and_mul_quant: {told}") from None
