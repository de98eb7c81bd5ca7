# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax, forward and backward."""

import functools

import jax
import numpy as np

from membound.jax import _arguments, _columns, _ffi, _sharding, _signatures


@_signatures.softmax
def softmax(arrays, options):
    """Softmax of ``scale * x + mask`` over the last axis; see :func:`membound.softmax`.

    ``scale`` and ``causal_offset`` are static: each new combination compiles once. Reverse-mode
    gradients (jax.grad, jax.vjp) run :func:`softmax_backward`, for a mask that is added too.
    Forward mode and second derivatives raise.

    Sharded columns are not gathered: the forward takes two all-reduces, of row maxima and sums, the
    backward one. The bits may then differ from those of whole rows; both are within 6 float32 ulps
    of the exact result (0.501 in 16 bits), plus the effect of rounding the logits.

    >>> import jax.numpy as jnp
    >>> x = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    >>> [round(float(y), 3) for y in softmax(x, jnp.array([True, False, True]))]
    [0.167, 0.0, 0.833]
    """
    _arguments.check_arrays(options.op, arrays)
    return _jitted_forward(arrays["x"], arrays["mask"], options)


@_signatures.softmax_backward
def softmax_backward(arrays, options):
    """The gradient of :func:`softmax`, from its result; see :func:`membound.softmax_backward`.

    >>> import jax.numpy as jnp
    >>> y = jnp.array([0.125, 0.25, 0.625])
    >>> softmax_backward(jnp.array([1.0, 0.0, 0.0]), y).tolist()
    [0.109375, -0.03125, -0.078125]
    """
    _arguments.check_arrays(options.op, arrays)
    return _jitted_backward(arrays["dy"], arrays["y"], options)


def _check_mask(x, mask):
    wide = x.dtype == np.float64
    fitting = ("float64",) if wide else ("float16", "bfloat16", "float32")
    if mask.dtype != bool and mask.dtype.name not in fitting:
        names = "float64" if wide else "float16, bfloat16 or float32"
        raise TypeError(
            f"softmax: argument 'mask' must be bool or {names} for x of {x.dtype.name}, got "
            f"{mask.dtype.name}"
        )
    pairs = zip(reversed(mask.shape), reversed(x.shape), strict=False)
    if mask.ndim > x.ndim or any(m not in (1, n) for m, n in pairs):
        raise ValueError(
            f"softmax: argument 'mask' must broadcast to the shape of 'x', {x.shape}, got "
            f"{mask.shape}"
        )


@functools.partial(jax.jit, static_argnums=2)
def _jitted_forward(x, mask, options):
    _arguments.check_rows("softmax", x, "x")
    _arguments.check_finite("softmax", options.scale, "scale", x.dtype)
    if options.causal_offset is not None and x.ndim < 2:
        raise ValueError(
            "softmax: argument 'causal_offset' must be None for 'x' of 1 axis, got "
            f"{options.causal_offset}"
        )
    if mask is not None:
        _check_mask(x, mask)
        x, mask = _sharding.vary_together(x, mask)
        # The mask gets as many axes as x: vmap adds leading axes to both.
        mask = mask.reshape((1,) * (x.ndim - mask.ndim) + mask.shape)
    return _differentiable(x, mask, options)


@functools.partial(jax.jit, static_argnums=2)
def _jitted_backward(dy, y, options):
    op = "softmax_backward"
    _arguments.check_rows(op, y, "y")
    _arguments.check_like(op, dy, "dy", y.dtype, y.shape)
    _arguments.check_finite(op, options.scale, "scale", y.dtype)
    return _backward(dy, y, options)


def _forward(x, mask, options):
    def run(x, mask):
        return _ffi.call("softmax", {"x": x, "mask": mask}, {"out": _ffi.like(x)}, options)

    axes = (*_sharding.rows_of(x), _sharding.COLUMNS)
    if options.causal_offset is not None:  # a shard would count from 0
        axes = (*axes[:-2], None, axes[-1])
    of_mask = () if mask is None else _of_mask(axes, mask)

    def on_columns(over, x, mask):
        return (_columns.softmax(options, over, x, mask),)

    return _sharding.cut(run, (x, mask), (axes, of_mask), [_sharding.Result(axes)], on_columns)[0]


def _of_mask(axes, mask):
    return tuple(None if size == 1 else name for name, size in zip(axes, mask.shape, strict=True))


def _backward(dy, y, options):
    def run(dy, y):
        arrays = {"dy": dy, "y": y}
        return _ffi.call("softmax_backward", arrays, {"dx": _ffi.like(y)}, options)

    def on_columns(over, dy, y):
        return (_columns.softmax_backward(options.scale, over, dy, y),)

    axes = (*_sharding.rows_of(y), _sharding.COLUMNS)
    return _sharding.cut(run, (dy, y), (axes, axes), [_sharding.Result(axes)], on_columns)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _differentiable(x, mask, options):
    return _forward(x, mask, options)


def _saving(x, mask, options):
    y = _forward(x, mask, options)
    return y, (y, mask)


def _gradient(options, saved, dy):
    y, mask = saved
    options = _arguments.options_of_backward(options)
    dx = _backward(dy, y, options)
    if mask is None or mask.dtype == bool:
        return dx, None
    # XLA removes results that are unused.
    repeated = [axis for axis in range(y.ndim) if mask.shape[axis] != y.shape[axis]]
    wide = _ffi.statistics_dtype(y)
    of_mask = _backward(dy, y, options._replace(scale=1.0)).astype(wide)
    return dx, of_mask.sum(repeated, keepdims=True).astype(mask.dtype)


_differentiable.defvjp(_saving, _gradient)
