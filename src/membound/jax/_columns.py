# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms and softmax of arrays whose columns are sharded: every device has a part of each row.

A row's statistics are 8 or 16 bytes, forward and backward, and take one all-reduce each (softmax
forward: a second one, of the maxima); nothing is gathered. The CUDA kernels reduce whole rows
themselves, so these are XLA's own ops. Sums are float64: squares of float32 values do not
overflow, and a mean 10^6 times the standard deviation costs no digits of float32.
"""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from membound.jax import _ffi

if hasattr(jax, "enable_x64"):
    _x64 = jax.enable_x64
else:  # jax < 0.8
    from jax.experimental import enable_x64 as _x64


def norm(options, centred, cols, over, x, residual, z, weight, bias):
    """(out, residual_out, mean, rstd) of whole rows, from the columns of this device.

    cols: columns of a whole row; over: the mesh axes that shard them.
    """
    wide = _ffi.rows_of(x, residual, z).dtype
    row = x.astype(wide)
    if residual is not None:
        row = total = row + residual.astype(wide)
    gate = None if z is None else jax.nn.silu(z.astype(wide))
    if gate is not None and not options.norm_before_gate:
        row, gate = row * gate, None
    mean, rest, rstd = _statistics(row, cols, over, options.eps, centred)
    if mean is not None:
        row = row - mean - rest
    rounded = _rounding(options, x.dtype, wide)
    out = rounded(row * rstd) * _factor(weight, options, wide)
    if gate is not None:
        out = rounded(out) * gate
    if bias is not None:
        out = out + bias.astype(wide)
    return (
        out.astype(options.dtype or x.dtype),
        None if residual is None else total.astype(residual.dtype),
        None if mean is None else mean[..., 0],
        rstd[..., 0],
    )


def norm_backward(options, cols, over, dy, dresidual_out, x, z, mean, rstd, weight):
    """The gradients by name, in the accumulator's dtype; dweight and dbias are summed over rows."""
    wide = max((_ffi.rows_of(x, dy, z).dtype, rstd.dtype), key=lambda kind: kind.itemsize)
    rounded, factor = _rounding(options, x.dtype, wide), _factor(weight, options, wide)
    dy, x, rstd = dy.astype(wide), x.astype(wide), rstd.astype(wide)[..., None]
    row, dnormed = x, dy
    if z is not None:
        gate, slope = _silu_and_slope(z.astype(wide))
        row, dnormed = (x, dy * gate) if options.norm_before_gate else (x * gate, dy)
    normed = (row if mean is None else row - mean.astype(wide)[..., None]) * rstd
    weighted = dnormed * factor
    along, level = _means(cols, over, (weighted, normed), (weighted,))
    dx = weighted - normed * along.astype(wide)
    dx = (dx if mean is None else dx - level.astype(wide)) * rstd
    dz = None
    if z is not None and options.norm_before_gate:
        dz = dy * rounded(rounded(normed) * factor) * slope
    elif z is not None:
        dx, dz = dx * gate, dx * x * slope
    if dresidual_out is not None:
        dx = dx + dresidual_out.astype(wide)
    rows = range(x.ndim - (1 if weight is None else weight.ndim))
    dweight, dbias = _sum(rows, dnormed, rounded(normed)), _sum(rows, dnormed)
    return {"dx": dx, "dresidual": dx, "dz": dz, "dweight": dweight, "dbias": dbias}


def softmax(options, over, x, mask):
    """The softmax of whole rows, from the columns of this device."""
    scores = x.astype(_ffi.statistics_dtype(x))
    scores = scores * np.asarray(options.scale, scores.dtype)
    if mask is not None and mask.dtype == bool:
        scores = jnp.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask.astype(scores.dtype)
    seen = True
    if options.causal_offset is not None:
        column = lax.axis_index(over) * x.shape[-1] + np.arange(x.shape[-1])
        seen = column <= np.arange(x.shape[-2])[:, None] + options.causal_offset
        scores = jnp.where(seen, scores, -np.inf)
    powers = jnp.exp(scores - lax.pmax(scores.max(-1, keepdims=True), over))
    return jnp.where(seen, powers / _total(over, powers).astype(powers.dtype), 0).astype(x.dtype)


def softmax_backward(scale, over, dy, y):
    wide = _ffi.statistics_dtype(y)
    along = _total(over, dy, y).astype(wide)
    dx = y.astype(wide) * (dy.astype(wide) - along) * np.asarray(scale, wide)
    return dx.astype(y.dtype)


def _total(over, *factors):
    """The sum of products over whole rows."""
    (mean,) = _means(1, over, factors)
    return mean


def _statistics(row, cols, over, eps, centred):
    """The mean, its rounding error, and rstd."""
    kind = row.dtype
    products = [(row, row), (row,)] if centred else [(row, row)]
    squares, *mean = _means(cols, over, *products)
    high = rest = None
    with _x64(True):
        if mean:
            squares = jnp.maximum(squares - mean[0] * mean[0], _float64(0))
            high = mean[0].astype(kind)
            rest = (mean[0] - high.astype(np.float64)).astype(kind)
        rstd = lax.rsqrt(squares + _float64(np.asarray(eps, kind))).astype(kind)
    return high, rest, rstd


def _means(cols, over, *products):
    """The mean of each product of arrays over whole rows, in float64, by one all-reduce."""
    with _x64(True):
        sums = [_sum([factors[0].ndim - 1], *factors)[..., None] for factors in products]
        return tuple(lax.psum(jnp.stack(sums), over) / _float64(cols))


def _sum(axes, *factors):
    with _x64(True):
        wide = [lax.convert_element_type(one, np.float64) for one in factors]
        return functools.reduce(operator.mul, wide).sum(axes)


def _float64(value):
    """A constant computed at run time: JAX < 0.5 lowers float64 literals as float32."""
    kind = getattr(value, "dtype", np.float32)
    return lax.convert_element_type(lax.full((1,), value, kind), np.float64)


def _factor(weight, options, wide):
    """The factor of the normalised row; without a weight it is weight_offset, or 1 if that is 0."""
    if weight is None:
        return np.asarray(options.weight_offset or 1.0, wide)
    return weight.astype(wide) + np.asarray(options.weight_offset, wide)


def _rounding(options, kind, wide):
    """Rounds to the dtype of x where the options say so.

    reduce_precision is used because XLA may drop a conversion and its inverse; exponents are kept.
    """
    if options.rounding != "before_weight":
        return lambda value: value
    exponent = jnp.finfo(wide).nexp
    return lambda value: lax.reduce_precision(value, exponent, jnp.finfo(kind).nmant)


def _silu_and_slope(z):
    share = jax.nn.sigmoid(z)
    return z * share, share * (1 + z * (1 - share))
