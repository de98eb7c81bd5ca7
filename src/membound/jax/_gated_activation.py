# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations, forward and backward."""

import functools
import math
from typing import NamedTuple

import jax

from membound import _core
from membound.jax import _arguments, _ffi, _sharding
from membound.jax._norm import static

_NAMED = _core.ACTIVATIONS  # name -> (the kind's own name, alpha, limit or None)
_KINDS = [name for name, (kind, *_) in _NAMED.items() if name == kind]  # the kernels' enumeration
_PACKINGS = ("halves", "interleaved", "gate")


class Options(NamedTuple):
    """The static options of a call."""

    op: str
    kind: int
    packing: str
    apart: bool  # up is an array of its own
    alpha: float
    limit: float
    up_offset: float
    dgate: bool = True
    dup: bool = True

    @property
    def packed(self):
        return not self.apart and self.packing != "gate"


@static
def options_of(op, apart, kind, packing, alpha, limit, up_offset, dgate=True, dup=True):
    _arguments.choice(op, packing, "packing", _PACKINGS)
    if apart and packing != "halves":
        raise ValueError(f"{op}: argument 'packing' must be left out with 'up', got {packing!r}")
    kind = _arguments.choice(op, kind, "kind", list(_NAMED))
    kind, own_alpha, own_limit = _NAMED[kind]
    alpha, limit = own_alpha if alpha is None else alpha, own_limit if limit is None else limit
    return Options(
        op=op,
        kind=_KINDS.index(kind),
        packing=packing,
        apart=apart,
        alpha=_arguments.number(op, alpha, "alpha"),
        limit=math.inf if limit is None else _arguments.number(op, limit, "limit"),
        up_offset=_arguments.number(op, up_offset, "up_offset"),
        dgate=_arguments.flag(op, dgate, "need_dgate"),
        dup=_arguments.flag(op, dup, "need_dup"),
    )


def gated_activation(
    gate, up=None, *, kind="silu", packing="halves", alpha=None, limit=None, up_offset=0.0,
    row_scale=None,
):  # fmt: skip
    """``act(gate) * up`` in one pass; see :func:`membound.gated_activation` for the arguments.

    The options are static: each new combination compiles once. Returns an array of ``(..., cols)``
    in the dtype of gate. Reverse-mode gradients (jax.grad, jax.vjp) run
    :func:`gated_activation_backward`, for row_scale too. Forward mode and second derivatives raise.

    >>> import jax.numpy as jnp
    >>> [round(float(v), 3) for v in gated_activation(jnp.array([1.0, -1.0, 3.0, 4.0]))]
    [2.193, -1.076]
    """
    op = "gated_activation"
    check_kinds(op, {"gate": gate, "up": up, "row_scale": row_scale})
    options = options_of(op, up is not None, kind, packing, alpha, limit, up_offset)
    return _jitted_forward(gate, up, row_scale, options)


def gated_activation_backward(
    dy, gate, up=None, *, kind="silu", packing="halves", alpha=None, limit=None, up_offset=0.0,
    row_scale=None, need_dgate=True, need_dup=True,
):  # fmt: skip
    """The gradients of :func:`gated_activation`.

    See :func:`membound.gated_activation_backward` for the arguments and the result.

    >>> import jax.numpy as jnp
    >>> found = gated_activation_backward(jnp.ones(2), jnp.array([1.0, -1.0, 3.0, 4.0]))
    >>> [round(float(v), 3) for v in found]
    [2.783, 0.289, 0.731, -0.269]
    """
    op = "gated_activation_backward"
    check_kinds(op, {"dy": dy, "gate": gate, "up": up, "row_scale": row_scale})
    options = options_of(
        op, up is not None, kind, packing, alpha, limit, up_offset, need_dgate, need_dup
    )
    for name, needed in (("need_dgate", options.dgate), ("need_dup", options.dup)):
        if up is None and not needed:
            raise ValueError(f"{op}: argument '{name}' must be True without 'up'")
    dgate, dup = _jitted_backward(dy, gate, up, row_scale, options)
    return dgate if up is None else (dgate, dup)


def check_kinds(op, arrays):
    """Require jax arrays; None is allowed."""
    _arguments.check_arrays(
        op,
        {n: a for n, a in arrays.items() if a is not None or n not in ("up", "row_scale")},
    )


def cols_of(gate, options):
    return gate.shape[-1] // 2 if options.packed else gate.shape[-1]


def check_inputs(gate, up, row_scale, options, dy=None):
    op = options.op
    _arguments.check_rows(op, gate, "gate")
    _check_numbers(gate, options)
    if options.packed and gate.shape[-1] % 2:
        raise ValueError(
            f"{op}: argument 'gate' must have at least 1 axis, the last of an even extent, to hold "
            f"gate and up, got a last axis of {gate.shape[-1]}"
        )
    if up is not None:
        _arguments.check_like(op, up, "up", gate.dtype, gate.shape)
    if row_scale is not None:
        kind = _ffi.statistics_dtype(gate)
        _arguments.check_like(op, row_scale, "row_scale", kind, gate.shape[:-1])
    if dy is not None:
        shape = (*gate.shape[:-1], cols_of(gate, options))
        _arguments.check_like(op, dy, "dy", gate.dtype, shape)


def _check_numbers(gate, options):
    alpha, limit, offset = options.alpha, options.limit, options.up_offset
    scales, alone = _KINDS[options.kind] in ("silu", "sigmoid", "situ"), options.packing == "gate"
    for right, text in (
        (0.0 < alpha < math.inf, f"'alpha' must be finite and above 0, got {alpha:g}"),
        (
            scales or alpha == 1.0,
            f"'alpha' must be 1 but for silu, sigmoid and situ, got {alpha:g}",
        ),
        (not alone or offset == 0.0, f"'up_offset' must be 0 without 'up', got {offset:g}"),
    ):
        if not right:
            raise ValueError(f"{options.op}: argument {text}")
    _arguments.check_finite(options.op, alpha, "alpha", gate.dtype)
    _arguments.check_limit(options.op, alpha, "alpha", gate.dtype)
    _arguments.check_limit(options.op, limit, "limit", gate.dtype)
    _arguments.check_finite(options.op, offset, "up_offset", gate.dtype)


@functools.partial(jax.jit, static_argnums=3)
def _jitted_forward(gate, up, row_scale, options):
    check_inputs(gate, up, row_scale, options)
    return _forward(*_sharding.vary_together(gate, up, row_scale), options)


@functools.partial(jax.jit, static_argnums=4)
def _jitted_backward(dy, gate, up, row_scale, options):
    check_inputs(gate, up, row_scale, options, dy)
    return _backward_call(dy, gate, up, row_scale, options)


def _axes(gate, options):
    """Which axes may be sharded: columns too, unless gate and up are packed."""
    rows = _sharding.rows_of(gate)
    return rows if options.packed else (*rows, _sharding.COLUMNS), rows


def _forward_call(gate, up, row_scale, options):
    def run(gate, up, row_scale):
        arrays = {"gate": gate, "up": up, "row_scale": row_scale}
        out = jax.ShapeDtypeStruct((*gate.shape[:-1], cols_of(gate, options)), gate.dtype)
        return _ffi.call("gated_activation", arrays, {"out": out}, options)

    axes, rows = _axes(gate, options)
    return _sharding.cut(run, (gate, up, row_scale), (axes, axes, rows), [_sharding.Result(axes)])[
        0
    ]


def _backward_call(dy, gate, up, row_scale, options):
    """(dgate, dup), None for those not needed; dgate is packed if gate is."""
    apart = up is not None
    wanted = options.dgate, options.dup and apart
    if not any(wanted):
        return None, None

    def run(dy, gate, up, row_scale):
        arrays = {"dy": dy, "gate": gate, "up": up, "row_scale": row_scale}
        made = zip(("dgate", "dup"), wanted, strict=True)
        results = {name: _ffi.like(gate) for name, is_wanted in made if is_wanted}
        return _ffi.call("gated_activation_backward", arrays, results, options)

    operands = (dy, gate, up, row_scale)
    axes, rows = _axes(gate, options)
    results = [_sharding.Result(axes)] * sum(wanted)
    found = _sharding.cut(run, operands, (axes, axes, axes, rows), results)
    return found[0] if wanted[0] else None, found[-1] if wanted[1] else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _forward(gate, up, row_scale, options):
    return _forward_call(gate, up, row_scale, options)


def _forward_saving(gate, up, row_scale, options):
    return _forward_call(gate, up, row_scale, options), (gate, up, row_scale)


def _gradients(options, saved, dy):
    gate, up, row_scale = saved
    dgate, dup = _backward_call(dy, gate, up, row_scale, options)
    dscale = None
    if row_scale is not None:  # XLA removes it if it is unused
        out = _forward_call(gate, up, None, options).astype(row_scale.dtype)
        dscale = (dy.astype(row_scale.dtype) * out).sum(-1)
    return dgate, dup, dscale


_forward.defvjp(_forward_saving, _gradients)
