# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the norms share: static options, jitted calls, and the custom gradient rule.

An added norm has a residual, a centred one (layer_norm) has means and an optional bias, a gated one
has a gate z. Operands that an op does not have are None.
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

from membound._normalized_shape import normalized_axes
from membound.jax import _arguments, _columns, _ffi, _sharding


class Norm(NamedTuple):
    """One of the five norms."""

    op: str
    centred: bool = False
    added: bool = False
    gated: bool = False


NORMS = {
    norm.op: norm
    for norm in (
        Norm("rms_norm"),
        Norm("add_rms_norm", added=True),
        Norm("layer_norm", centred=True),
        Norm("add_layer_norm", centred=True, added=True),
        Norm("rms_norm_gated", gated=True),
    )
}


class Wanted(NamedTuple):
    """Which gradients are needed."""

    dx: bool
    dresidual: bool  # separate from dx only if its dtype differs
    dz: bool
    dweight: bool
    dbias: bool

    def to_shape(self):
        """An empty array that encodes the choice in its shape, to be saved as a residual.

        Static data in the residuals' tree would not work: JAX keeps one tree per jitted function,
        that of the last trace, for every choice of differentiated arguments.
        """
        return jax.numpy.zeros((*map(int, self), 0), bool)

    @classmethod
    def from_shape(cls, saved):
        return cls(*map(bool, saved.shape[:-1]))


def default_eps(norm, x):
    """torch's default eps, as in the extension: F.layer_norm's, or the epsilon of the dtype."""
    return 1e-5 if norm.centred else float(np.finfo(_ffi.statistics_dtype(x)).eps)


def run_forward(arrays, options, normalized_shape):
    """(out, residual_out, mean, rstd)."""
    _arguments.check_arrays(options.op, arrays)
    x, residual, z, weight, bias = map(arrays.get, ("x", "residual", "z", "weight", "bias"))
    if options.eps is None:
        options = options._replace(eps=default_eps(NORMS[options.op], x))
    axes = normalized_axes(options.op, normalized_shape, x.shape, {"weight": weight, "bias": bias})
    if axes == 1:
        return jitted_forward(x, residual, z, weight, bias, options)
    arrays = (_merged(array, axes) for array in (x, residual, z, weight, bias))
    out, residual_out, *statistics = jitted_forward(*arrays, options)
    return out.reshape(x.shape), _reshaped(residual_out, x), *statistics


_READ = ("dy", "dresidual_out", "x", "z", "weight", "mean", "rstd")


def run_backward(arrays, options, normalized_shape):
    """(dx, dresidual, dz, dweight, dbias)."""
    _arguments.check_arrays(options.op, arrays)
    x_name = "residual_out" if "residual_out" in arrays else "x"
    arrays = {**arrays, "x": arrays[x_name]}
    dy, dresidual_out, x, z, weight, mean, rstd = map(arrays.get, _READ)
    parameters = {"weight": weight}
    axes = normalized_axes(options.op, normalized_shape, x.shape, parameters, x_name)
    statistics = (_without_kept_axes(one, x, axes) for one in (mean, rstd))
    if axes == 1:
        return jitted_backward(dy, dresidual_out, x, z, weight, *statistics, options)
    arrays = (_merged(array, axes) for array in (dy, dresidual_out, x, z, weight))
    *of_rows, dweight, dbias = jitted_backward(*arrays, *statistics, options)
    columns = x.shape[-axes:]
    sums = (None if one is None else one.reshape(columns) for one in (dweight, dbias))
    return *(_reshaped(one, x) for one in of_rows), *sums


def _merged(array, axes):
    """Merge the last axes; in XLA's row-major layout this copies nothing."""
    if array is None or array.ndim < axes:
        return array
    return array.reshape(*array.shape[: array.ndim - axes], -1)


def _reshaped(array, x):
    return None if array is None else array.reshape(x.shape)


def _without_kept_axes(statistic, x, axes):
    kept = statistic is not None and statistic.ndim == x.ndim
    if kept and statistic.shape[x.ndim - axes :] == (1,) * axes:
        return statistic.reshape(statistic.shape[: x.ndim - axes])
    return statistic


# ffi_call costs 190 us a call without jit; under jit a call costs as much as a jitted add.
@functools.partial(jax.jit, static_argnums=5)
def jitted_forward(x, residual, z, weight, bias, options):
    """(out, residual_out, mean, rstd)."""
    _arguments.check_forward(x, residual, z, weight, bias, options)
    return _forward(*_sharding.vary_together(x, residual, z, weight, bias), options)


@functools.partial(jax.jit, static_argnums=7)
def jitted_backward(dy, dresidual_out, x, z, weight, mean, rstd, options):
    """(dx, dresidual, dz, dweight, dbias); dbias has the dtype of the weight, or else of x."""
    _arguments.check_backward(dy, dresidual_out, x, z, weight, mean, rstd, options)
    bias = _ffi.columns_of(x) if weight is None else _ffi.like(weight)
    wanted = Wanted(*(getattr(options, f"need_{name}") for name in Wanted._fields))
    return _backward_call(dy, dresidual_out, x, z, weight, bias, mean, rstd, options, wanted)


def axes_of(x, parameter):
    """Axis names of x, of a per-row statistic and of a parameter, which may have a heads axis."""
    rows = _sharding.rows_of(x)
    of_heads = rows[-1:] if _ffi.has_heads(parameter) else ()
    return (*rows, _sharding.COLUMNS), rows, (*of_heads, _sharding.COLUMNS)


def _forward_call(x, residual, z, weight, bias, options, with_statistics):
    """(out, residual_out, mean, rstd)."""
    _, centred, added, _ = NORMS[options.op]
    statistics = (1 + centred) if with_statistics else 0

    def run(x, residual, z, weight, bias):
        arrays = {"x": x, "residual": residual, "z": z, "weight": weight, "bias": bias}
        statistic = _ffi.rows_of(x, residual, z) if with_statistics else None
        results = {
            "out": _ffi.as_dtype(x, options.dtype or x.dtype),
            "residual_out": _ffi.like(residual) if added else None,
            "mean": statistic,
            "rstd": statistic,
        }
        return _ffi.call(options.op, arrays, results, options)

    def on_columns(over, *arrays):
        found = _columns.norm(options, centred, x.shape[-1], over, *arrays)
        wanted = [one for one in found if one is not None]
        return wanted if with_statistics else wanted[: 1 + added]

    rows, statistic, columns = axes_of(x, bias if weight is None else weight)
    found = _sharding.cut(
        run,
        (x, residual, z, weight, bias),
        (rows, rows, rows, columns, columns),
        [_sharding.Result(rows)] * (1 + added) + [_sharding.Result(statistic)] * statistics,
        on_columns,
    )
    mean = found[-2] if with_statistics and centred else None
    return found[0], found[1] if added else None, mean, found[-1] if with_statistics else None


def _backward_call(
    dy, dresidual_out, x, z, weight, bias, mean, rstd, options, wanted, dx_dtype=None
):  # fmt: skip
    """(dx, dresidual, dz, dweight, dbias); bias gives the shape and dtype of dbias.

    dx_dtype: that of x, which the added norms do not read; without it that of dy.
    """
    there = zip(Wanted._fields, (x, x, z, weight, bias), wanted, strict=True)
    names = [name for name, shape, wanted in there if wanted and shape is not None]
    if not names:
        return (None,) * len(Wanted._fields)
    norm = NORMS[options.op.removesuffix("_backward")]
    dx_dtype = dx_dtype or (dy.dtype if norm.added else x.dtype)
    sums = {"dweight", "dbias"}.intersection(names)

    def shapes_of(x, z, weight):
        return {
            "dx": _ffi.as_dtype(x, dx_dtype), "dresidual": x, "dz": z, "dweight": weight,
            "dbias": bias and jax.ShapeDtypeStruct(x.shape[-len(bias.shape) :], bias.dtype),
        }  # fmt: skip

    def run(dy, dresidual_out, x, z, mean, rstd, weight):
        shapes = shapes_of(x, z, weight)
        results = {name: _ffi.like(shapes[name]) for name in names}
        if sums:
            kinds = {a.dtype for a in (dy, dresidual_out, x, z) if a is not None} | {dx_dtype}
            mixed = (
                len(kinds) > 1
                or "dresidual" in names
                or rstd.dtype != _ffi.statistics_dtype(x)
                or (weight is None and options.weight_offset != 0.0)
            )
            results["workspace"] = _ffi.sums_workspace(
                x, weight, centred=norm.centred, gated=z is not None, mixed=mixed
            )
        arrays = {
            "dy": dy, "dresidual_out": dresidual_out, "x": x, "z": z, "mean": mean, "rstd": rstd,
            "weight": weight,
        }  # fmt: skip
        return _ffi.call(options.op, arrays, results, options)[: len(names)]

    def on_columns(over, *arrays):
        found = _columns.norm_backward(options, x.shape[-1], over, *arrays)
        shapes = shapes_of(x, z, weight)
        return [found[name].astype(shapes[name].dtype) for name in names]

    rows, statistic, columns = axes_of(x, weight)
    of_sums = _sharding.Result(columns, tuple(name for name in statistic if name not in columns))
    found = _sharding.cut(
        run,
        (dy, dresidual_out, x, z, mean, rstd, weight),
        (rows, rows, rows, rows, statistic, statistic, columns),
        [of_sums if name in sums else _sharding.Result(rows) for name in names],
        on_columns,
    )
    gradients = dict(zip(names, found, strict=True))
    return tuple(map(gradients.get, Wanted._fields))


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _forward(x, residual, z, weight, bias, options):
    return _forward_call(x, residual, z, weight, bias, options, options.return_statistics)


def _forward_saving(x, residual, z, weight, bias, options):
    def perturbed(primal):
        return primal is not None and primal.perturbed

    def value(primal):
        return None if primal is None else primal.value

    dx, dresidual, dz, dweight, dbias = map(perturbed, (x, residual, z, weight, bias))
    x, residual, z, weight, bias = map(value, (x, residual, z, weight, bias))
    apart = residual is not None and residual.dtype != x.dtype
    wanted = Wanted(dx or (dresidual and not apart), dresidual and apart, dz, dweight, dbias)
    out, residual_out, mean, rstd = _forward_call(x, residual, z, weight, bias, options, True)
    normalised = x if residual is None else residual_out
    of_bias = None if bias is None else jax.numpy.zeros((0, *bias.shape), bias.dtype)
    of_x = jax.numpy.zeros(0, x.dtype)
    saved = (normalised, of_x, z, weight, of_bias, mean, rstd, wanted.to_shape())
    returned = options.return_statistics
    return (out, residual_out, mean if returned else None, rstd if returned else None), saved


def _gradients(options, saved, cotangents):
    """The cotangents of x, residual, z, weight and bias; None for those not needed."""
    x, of_x, z, weight, of_bias, mean, rstd, shape = saved
    dy, dresidual_out, dmean, drstd = map(_unless_zero, cotangents)
    norm, wanted = NORMS[options.op], Wanted.from_shape(shape)
    if dy is None:
        dy = jax.numpy.zeros(x.shape, options.dtype or of_x.dtype)
    bias = None if of_bias is None else jax.ShapeDtypeStruct(of_bias.shape[1:], of_bias.dtype)
    if weight is None and _ffi.has_heads(bias):  # only the weight tells the number of heads
        weight = jax.numpy.ones(bias.shape, x.dtype)
    backward = _arguments.options_of_backward(options)
    dx, dresidual, dz, dweight, dbias = _backward_call(
        dy, dresidual_out, x, z, weight, bias, mean, rstd, backward, wanted, of_x.dtype.name
    )
    statistics = (x, z, mean, rstd, dmean, drstd, options)
    dx, dz = _through_statistics(dx, dz, *statistics)
    if wanted.dresidual:
        dresidual, _ = _through_statistics(dresidual, None, *statistics)
    elif norm.added and x.dtype == of_x.dtype:
        dresidual = dx
    return dx, dresidual, dz, dweight, dbias


def _through_statistics(dx, dz, x, z, mean, rstd, dmean, drstd, options):
    """Add to dx and dz the gradients that flow through the returned mean and rstd.

    These use the derivatives of the statistics with respect to the normalised row.
    """
    if dmean is None and drstd is None:
        return dx, dz
    wide = rstd.dtype
    row, to_inputs = x.astype(wide), lambda more: (more, None)
    if z is not None and not options.norm_before_gate:
        row, to_inputs = jax.vjp(_gate, row, z.astype(wide))
    more = 0.0
    if dmean is not None:
        more = more + dmean[..., None] / x.shape[-1]
    if drstd is not None:
        deviation = row if mean is None else row - mean[..., None]
        more = more + (-drstd * rstd**3 / x.shape[-1])[..., None] * deviation

    def add(gradient, part):
        wanted = gradient is not None and part is not None
        return (gradient + part).astype(gradient.dtype) if wanted else gradient

    return tuple(map(add, (dx, dz), to_inputs(more)))


def _gate(x, z):
    return x * jax.nn.silu(z)


def _unless_zero(cotangent):
    symbolic = isinstance(cotangent, jax.custom_derivatives.SymbolicZero)
    return None if symbolic else cotangent


_forward.defvjp(_forward_saving, _gradients, symbolic_zeros=True)
