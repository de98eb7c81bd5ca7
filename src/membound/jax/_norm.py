# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm and residual addition with RMSNorm: forward, backward, and the rule that joins them."""

import functools
from typing import NamedTuple

import jax
import numpy as np

from membound.jax import _arguments, _ffi


class _Forward(NamedTuple):
    """What is static in a forward call."""

    op: str
    eps: float
    weight_offset: float
    before_weight: bool
    return_rstd: bool


class _Backward(NamedTuple):
    """What is static in a backward call."""

    op: str
    weight_offset: float
    before_weight: bool
    need_dx: bool
    need_dweight: bool


def rms_norm(x, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", return_rstd=False):
    """Root mean square normalisation over the last axis.

    ``x / sqrt(mean(x * x) + eps) * (weight + weight_offset)``, see :func:`membound.rms_norm` for
    the arguments. The scalars are static: each new combination compiles once. Returns an array of
    x's shape and dtype, or with ``return_rstd=True`` the pair of it and
    ``1 / sqrt(mean(x * x) + eps)`` in float32 (float64 for float64).

    Reverse-mode gradients (jax.grad, jax.vjp) run :func:`rms_norm_backward` on x, weight and rstd,
    and compute only those that are asked for. Forward mode and second derivatives raise.

    >>> import jax.numpy as jnp
    >>> [round(float(v), 4) for v in rms_norm(jnp.array([3.0, 4.0]), eps=0.0)]
    [0.8485, 1.1314]
    """
    _arguments.check_arrays("rms_norm", {"x": x, "weight": weight})
    options = _static(_forward_options, "rms_norm", eps, weight_offset, rounding, return_rstd)
    out, _, rstd = _jitted_forward(x, None, weight, options)
    return (out, rstd) if options.return_rstd else out


def add_rms_norm(
    x, residual, weight=None, *, eps=1e-6, weight_offset=0.0, rounding="once", return_rstd=False
):
    """Residual addition and root mean square normalisation of the sum, in one pass.

    Returns ``(out, residual_out)``, or with ``return_rstd=True`` ``(out, residual_out, rstd)``; see
    :func:`membound.add_rms_norm`. The scalars are static. Reverse-mode gradients run
    :func:`add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> out, total = add_rms_norm(jnp.array([1.0, 2.0]), jnp.array([2.0, 2.0]), eps=12.5)
    >>> [round(float(v), 4) for v in out], total.tolist()
    ([0.6, 0.8], [3.0, 4.0])
    """
    _arguments.check_arrays("add_rms_norm", {"x": x, "residual": residual, "weight": weight})
    options = _static(_forward_options, "add_rms_norm", eps, weight_offset, rounding, return_rstd)
    out, residual_out, rstd = _jitted_forward(x, residual, weight, options)
    return (out, residual_out, rstd) if options.return_rstd else (out, residual_out)


def rms_norm_backward(
    dy, x, weight, rstd, *, weight_offset=0.0, rounding="once", need_dx=True, need_dweight=True
):
    """The gradients of :func:`rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    See :func:`membound.rms_norm_backward` for the arguments. dweight has the dtype of weight.

    >>> import jax.numpy as jnp
    >>> x, weight = jnp.array([[3.0, 4.0], [4.0, -3.0]]), jnp.array([1.0, 2.0])
    >>> rstd = rms_norm(x, weight, eps=12.5, return_rstd=True)[1]
    >>> dx, dweight = rms_norm_backward(jnp.ones_like(x), x, weight, rstd)
    >>> bool(abs(dweight - jnp.array([1.4, 0.2])).max() < 1e-6)
    True
    """
    arrays = {"dy": dy, "x": x, "weight": weight, "rstd": rstd}
    _arguments.check_arrays("rms_norm_backward", arrays)
    options = _static(
        _backward_options, "rms_norm_backward", weight_offset, rounding, need_dx, need_dweight
    )
    return _jitted_backward(dy, None, x, weight, rstd, options)


def add_rms_norm_backward(
    dy, dresidual_out, residual_out, weight, rstd, *, weight_offset=0.0, rounding="once",
    need_dx=True, need_dweight=True,
):  # fmt: skip
    """The gradients of :func:`add_rms_norm`: ``(dx, dweight)``, None for what is not wanted.

    dx is that of x and of residual. See :func:`membound.add_rms_norm_backward`.

    >>> import jax.numpy as jnp
    >>> total, dtotal = jnp.array([[3.0, 4.0]]), jnp.array([[5.0, 6.0]])
    >>> dx, _ = add_rms_norm_backward(jnp.zeros((1, 2)), dtotal, total, None, jnp.array([0.2]))
    >>> dx.tolist()
    [[5.0, 6.0]]
    """
    arrays = {
        "dy": dy,
        "dresidual_out": dresidual_out,
        "residual_out": residual_out,
        "weight": weight,
        "rstd": rstd,
    }
    _arguments.check_arrays("add_rms_norm_backward", arrays)
    options = _static(
        _backward_options, "add_rms_norm_backward", weight_offset, rounding, need_dx, need_dweight
    )
    return _jitted_backward(dy, dresidual_out, residual_out, weight, rstd, options)


def _static(make, *values):
    try:
        return make(*values)
    except TypeError:  # unhashable: a NumPy scalar array is a number all the same, a list is not
        return make.__wrapped__(*values)


@functools.lru_cache(typed=True)
def _forward_options(op, eps, weight_offset, rounding, return_rstd):
    return _Forward(
        op=op,
        before_weight=_arguments.before_weight(op, rounding),
        return_rstd=_arguments.flag(op, return_rstd, "return_rstd"),
        eps=_arguments.number(op, eps, "eps"),
        weight_offset=_arguments.number(op, weight_offset, "weight_offset"),
    )


@functools.lru_cache(typed=True)
def _backward_options(op, weight_offset, rounding, need_dx, need_dweight):
    return _Backward(
        op=op,
        weight_offset=_arguments.number(op, weight_offset, "weight_offset"),
        before_weight=_arguments.before_weight(op, rounding),
        need_dx=_arguments.flag(op, need_dx, "need_dx"),
        need_dweight=_arguments.flag(op, need_dweight, "need_dweight"),
    )


# Un-jitted, ffi_call costs 190 us a call; behind jit a call costs what a jitted add does.
@functools.partial(jax.jit, static_argnums=3)
def _jitted_forward(x, residual, weight, options):
    _arguments.check_forward(x, residual, weight, options)
    return _forward(x, residual, weight, options)


@functools.partial(jax.jit, static_argnums=5)
def _jitted_backward(dy, dresidual_out, x, weight, rstd, options):
    _arguments.check_backward(dy, dresidual_out, x, weight, rstd, options)
    return _backward_call(dy, dresidual_out, x, weight, rstd, options)


def _forward_call(x, residual, weight, options, with_rstd):
    """(out, residual_out, rstd), with None for what there is not."""
    results = [_ffi.like(x)] * (1 if residual is None else 2)
    if with_rstd:
        results.append(_ffi.rows_of(x))
    found = _ffi.call(
        f"membound_{options.op}",
        results,
        (x, residual, weight),
        eps=np.float64(options.eps),
        weight_offset=np.float64(options.weight_offset),
        rounding=np.int32(options.before_weight),
    )
    return found[0], None if residual is None else found[1], found[-1] if with_rstd else None


def _backward_call(dy, dresidual_out, x, weight, rstd, options):
    """(dx, dweight), with None for what is not wanted."""
    need_dweight = options.need_dweight and weight is not None
    results = [_ffi.like(x)] if options.need_dx else []
    if need_dweight:
        results += [_ffi.like(weight), _ffi.dweight_workspace(x)]
    if not results:
        return None, None
    found = _ffi.call(
        f"membound_{options.op}",
        results,
        (dy, dresidual_out, x, rstd, weight),
        weight_offset=np.float64(options.weight_offset),
        rounding=np.int32(options.before_weight),
    )
    return found[0] if options.need_dx else None, found[-2] if need_dweight else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _forward(x, residual, weight, options):
    return _forward_call(x, residual, weight, options, options.return_rstd)


class _Wanted(NamedTuple):
    """Which gradients somebody asked for: static, though it travels with what the forward saved."""

    dx: bool
    dweight: bool


class _Saved:
    """The forward's arrays for the backward."""

    def __init__(self, arrays, wanted):
        self.arrays = arrays  # x or residual_out, weight, rstd
        self.wanted = wanted


jax.tree_util.register_pytree_node(
    _Saved,
    lambda saved: (saved.arrays, saved.wanted),
    lambda wanted, arrays: _Saved(arrays, wanted),
)


def _forward_saving(x, residual, weight, options):
    def perturbed(primal):
        return primal is not None and primal.perturbed

    def value(primal):
        return None if primal is None else primal.value

    wanted = _Wanted(perturbed(x) or perturbed(residual), perturbed(weight))
    x, residual, weight = value(x), value(residual), value(weight)
    out, residual_out, rstd = _forward_call(x, residual, weight, options, True)
    saved = (x if residual is None else residual_out, weight, rstd)
    return (out, residual_out, rstd if options.return_rstd else None), _Saved(saved, wanted)


def _gradients(options, saved, cotangents):
    """The cotangents of x, residual and weight; None where none is wanted."""
    x, weight, rstd = saved.arrays
    dy, dresidual_out, drstd = map(_unless_zero, cotangents)
    added = dresidual_out is not None
    backward = _Backward(
        "add_rms_norm_backward" if added else "rms_norm_backward",
        options.weight_offset,
        options.before_weight,
        *saved.wanted,
    )
    if dy is None:
        dy = jax.numpy.zeros(x.shape, x.dtype)
    dx, dweight = _backward_call(dy, dresidual_out, x, weight, rstd, backward)
    if dx is not None and drstd is not None:  # rstd itself was used: its derivative by x
        factor = -drstd * rstd**3 / x.shape[-1]
        dx = (dx + factor[..., None] * x).astype(x.dtype)
    return dx, dx if options.op == "add_rms_norm" else None, dweight


def _unless_zero(cotangent):
    symbolic = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return None if symbolic else cotangent


_forward.defvjp(_forward_saving, _gradients, symbolic_zeros=True)
