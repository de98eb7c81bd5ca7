# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the norms share: static options, the calls under jit, and the rule that joins them.

An added norm has a residual, a centred one (layer_norm) has means and perhaps a bias. What an op
has not is None.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from membound.jax import _arguments, _ffi


class Norm(NamedTuple):
    """Which of the four it is."""

    op: str
    centred: bool
    added: bool

    @property
    def statistics_flag(self):
        return "return_stats" if self.centred else "return_rstd"


RMS_NORM = Norm("rms_norm", centred=False, added=False)
ADD_RMS_NORM = Norm("add_rms_norm", centred=False, added=True)
LAYER_NORM = Norm("layer_norm", centred=True, added=False)
ADD_LAYER_NORM = Norm("add_layer_norm", centred=True, added=True)


class Forward(NamedTuple):
    """What is static in a forward call."""

    norm: Norm
    eps: float
    weight_offset: float
    before_weight: bool
    return_statistics: bool

    @property
    def op(self):
        return self.norm.op


class Backward(NamedTuple):
    """What is static in a backward call."""

    norm: Norm
    weight_offset: float
    before_weight: bool
    need_dx: bool
    need_dweight: bool
    need_dbias: bool

    @property
    def op(self):
        return f"{self.norm.op}_backward"


def _static(make):
    """Static options are made once for equal arguments."""
    cached = functools.lru_cache(typed=True)(make)

    @functools.wraps(make)
    def made(*values):
        try:
            return cached(*values)
        except TypeError:  # unhashable: a NumPy scalar array is a number all the same, a list not
            return make(*values)

    return made


@_static
def forward_options(norm, eps, weight_offset, rounding, return_statistics):
    op = norm.op
    return Forward(
        norm=norm,
        before_weight=_arguments.before_weight(op, rounding),
        return_statistics=_arguments.flag(op, return_statistics, norm.statistics_flag),
        eps=_arguments.number(op, eps, "eps"),
        weight_offset=_arguments.number(op, weight_offset, "weight_offset"),
    )


@_static
def backward_options(norm, weight_offset, rounding, need_dx, need_dweight, need_dbias):
    op = f"{norm.op}_backward"
    return Backward(
        norm=norm,
        weight_offset=_arguments.number(op, weight_offset, "weight_offset"),
        before_weight=_arguments.before_weight(op, rounding),
        need_dx=_arguments.flag(op, need_dx, "need_dx"),
        need_dweight=_arguments.flag(op, need_dweight, "need_dweight"),
        need_dbias=_arguments.flag(op, need_dbias, "need_dbias"),
    )


# Un-jitted, ffi_call costs 190 us a call; behind jit a call costs what a jitted add does.
@functools.partial(jax.jit, static_argnums=4)
def jitted_forward(x, residual, weight, bias, options):
    """(out, residual_out, mean, rstd)."""
    _arguments.check_forward(x, residual, weight, bias, options)
    return _forward(x, residual, weight, bias, options)


@functools.partial(jax.jit, static_argnums=6)
def jitted_backward(dy, dresidual_out, x, weight, mean, rstd, options):
    """(dx, dweight, dbias); a new dbias has the dtype of the weight, or that of x."""
    _arguments.check_backward(dy, dresidual_out, x, weight, mean, rstd, options)
    bias = _ffi.columns_of(x) if weight is None else _ffi.like(weight)
    return _backward_call(dy, dresidual_out, x, weight, bias, mean, rstd, options)


def _forward_call(x, residual, weight, bias, options, with_statistics):
    """(out, residual_out, mean, rstd)."""
    centred, added = options.norm.centred, options.norm.added
    results = [_ffi.like(x)] * (1 + added)
    if with_statistics:
        results += [_ffi.rows_of(x)] * (1 + centred)
    found = _ffi.call(
        f"membound_{options.op}",
        results,
        (x, residual, weight, bias),
        eps=np.float64(options.eps),
        weight_offset=np.float64(options.weight_offset),
        rounding=np.int32(options.before_weight),
        bias=np.int32(bias is not None),
    )
    mean = found[-2] if with_statistics and centred else None
    return found[0], found[1] if added else None, mean, found[-1] if with_statistics else None


def _backward_call(dy, dresidual_out, x, weight, bias, mean, rstd, options):
    """(dx, dweight, dbias); bias tells the shape and dtype of dbias."""
    wanted = {
        "dx": _ffi.like(x) if options.need_dx else None,
        "dweight": _ffi.like(weight) if options.need_dweight and weight is not None else None,
        "dbias": bias if options.need_dbias else None,
    }
    results = {name: result for name, result in wanted.items() if result is not None}
    if not results:
        return None, None, None
    workspace = [] if results.keys() == {"dx"} else [_ffi.sums_workspace(x, options.norm.centred)]
    found = _ffi.call(
        f"membound_{options.op}",
        [*results.values(), *workspace],
        (dy, dresidual_out, x, mean, rstd, weight),
        weight_offset=np.float64(options.weight_offset),
        rounding=np.int32(options.before_weight),
        dweight=np.int32("dweight" in results),
        dbias=np.int32("dbias" in results),
    )
    gradients = dict(zip(results, found, strict=False))  # less the workspace
    return tuple(gradients.get(name) for name in wanted)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _forward(x, residual, weight, bias, options):
    return _forward_call(x, residual, weight, bias, options, options.return_statistics)


class _Wanted(NamedTuple):
    """Which gradients somebody asked for."""

    dx: bool
    dweight: bool
    dbias: bool

    def to_shape(self):
        """An empty array to save, that says it by its shape.

        Static data in the tree of what is saved would not do: of a jitted function JAX keeps one
        tree, that of the last trace, for every choice of what is differentiated.
        """
        return jax.numpy.zeros((*map(int, self), 0), bool)

    @classmethod
    def from_shape(cls, saved):
        return cls(*map(bool, saved.shape[:3]))


def _forward_saving(x, residual, weight, bias, options):
    def perturbed(primal):
        return primal is not None and primal.perturbed

    def value(primal):
        return None if primal is None else primal.value

    wanted = _Wanted(perturbed(x) or perturbed(residual), perturbed(weight), perturbed(bias))
    x, residual, weight, bias = map(value, (x, residual, weight, bias))
    out, residual_out, mean, rstd = _forward_call(x, residual, weight, bias, options, True)
    normalised = residual_out if options.norm.added else x
    of_bias = None if bias is None else jax.numpy.zeros(0, bias.dtype)
    saved = (normalised, weight, of_bias, mean, rstd, wanted.to_shape())
    returned = options.return_statistics
    return (out, residual_out, mean if returned else None, rstd if returned else None), saved


_WITHOUT_RESIDUAL = {True: LAYER_NORM, False: RMS_NORM}
_WITH_RESIDUAL = {True: ADD_LAYER_NORM, False: ADD_RMS_NORM}


def _gradients(options, saved, cotangents):
    """The cotangents of x, residual, weight and bias; None where none is wanted."""
    x, weight, of_bias, mean, rstd, shape = saved
    dy, dresidual_out, dmean, drstd = map(_unless_zero, cotangents)
    norms = _WITHOUT_RESIDUAL if dresidual_out is None else _WITH_RESIDUAL
    norm = norms[options.norm.centred]
    wanted = _Wanted.from_shape(shape)
    backward = Backward(norm, options.weight_offset, options.before_weight, *wanted)
    if dy is None:
        dy = jax.numpy.zeros(x.shape, x.dtype)
    bias = None if of_bias is None else _ffi.columns_of(x, of_bias.dtype)
    dx, dweight, dbias = _backward_call(dy, dresidual_out, x, weight, bias, mean, rstd, backward)
    if dx is not None:
        dx = _through_statistics(dx, x, mean, rstd, dmean, drstd)
    return dx, dx if options.norm.added else None, dweight, dbias


def _through_statistics(dx, x, mean, rstd, dmean, drstd):
    """What comes to dx where mean or rstd themselves were used: their derivatives by x."""
    more = 0.0
    if dmean is not None:
        more = more + dmean[..., None] / x.shape[-1]
    if drstd is not None:
        deviation = x if mean is None else x - mean[..., None]
        more = more + (-drstd * rstd**3 / x.shape[-1])[..., None] * deviation
    return dx if dmean is None and drstd is None else (dx + more).astype(x.dtype)


def _unless_zero(cotangent):
    symbolic = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return None if symbolic else cotangent


_forward.defvjp(_forward_saving, _gradients, symbolic_zeros=True)
