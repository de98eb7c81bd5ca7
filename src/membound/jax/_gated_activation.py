# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations, forward and backward."""

import functools
import math

import jax

from membound import _core
from membound.jax import _arguments, _ffi, _sharding, _signatures

_NAMED = _core.ACTIVATIONS  # name -> (the kind's own name, alpha, limit or None)
_KINDS = [name for name, (kind, *_) in _NAMED.items() if name == kind]  # the kernels' enumeration


def resolved(options):
    """The options with the kernels' number of the kind, and its own alpha and limit."""
    op = options.op
    kind = _arguments.choice(op, options.kind, "kind", list(_NAMED))
    kind, alpha, limit = _NAMED[kind]
    if options.alpha is not None:
        alpha = options.alpha
    if options.limit is not None:
        limit = options.limit
    return options._replace(
        kind=_KINDS.index(kind), alpha=alpha, limit=math.inf if limit is None else limit
    )


def is_packed(up, options):
    return up is None and options.packing != "gate"


@functools.partial(_signatures.gated_activation, resolve=resolved)
def gated_activation(arrays, options):
    """``act(gate) * up`` in one pass; see :func:`membound.gated_activation` for the arguments.

    The options are static: each new combination compiles once. Returns an array of ``(..., cols)``
    in the dtype of gate. Reverse-mode gradients (jax.grad, jax.vjp) run
    :func:`gated_activation_backward`, for row_scale too. Forward mode and second derivatives raise.

    >>> import jax.numpy as jnp
    >>> [round(float(v), 3) for v in gated_activation(jnp.array([1.0, -1.0, 3.0, 4.0]))]
    [2.193, -1.076]
    """
    check_kinds(arrays, options)
    return _jitted_forward(*map(arrays.get, ("gate", "up", "row_scale")), options)


@functools.partial(_signatures.gated_activation_backward, resolve=resolved)
def gated_activation_backward(arrays, options):
    """The gradients of :func:`gated_activation`.

    See :func:`membound.gated_activation_backward` for the arguments and the result.

    >>> import jax.numpy as jnp
    >>> found = gated_activation_backward(jnp.ones(2), jnp.array([1.0, -1.0, 3.0, 4.0]))
    >>> [round(float(v), 3) for v in found]
    [2.783, 0.289, 0.731, -0.269]
    """
    check_kinds(arrays, options)
    up = arrays["up"]
    for name in ("need_dgate", "need_dup"):
        if up is None and not getattr(options, name):
            raise ValueError(f"{options.op}: argument '{name}' must be True without 'up'")
    dgate, dup = _jitted_backward(*map(arrays.get, ("dy", "gate", "up", "row_scale")), options)
    return dgate if up is None else (dgate, dup)


def check_kinds(arrays, options):
    """Require jax arrays, and no packing of gate with an up of its own."""
    _arguments.check_arrays(options.op, arrays)
    if arrays["up"] is not None and options.packing != "halves":
        raise ValueError(
            f"{options.op}: argument 'packing' must be left out with 'up', got {options.packing!r}"
        )


def cols_of(gate, up, options):
    return gate.shape[-1] // 2 if is_packed(up, options) else gate.shape[-1]


def check_inputs(gate, up, row_scale, options, dy=None):
    op = options.op
    _arguments.check_rows(op, gate, "gate")
    _check_numbers(gate, options)
    if is_packed(up, options) and gate.shape[-1] % 2:
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
        shape = (*gate.shape[:-1], cols_of(gate, up, options))
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


def _axes(gate, up, options):
    """Which axes may be sharded: columns too, unless gate and up are packed."""
    rows = _sharding.rows_of(gate)
    return rows if is_packed(up, options) else (*rows, _sharding.COLUMNS), rows


def _forward_call(gate, up, row_scale, options):
    def run(gate, up, row_scale):
        arrays = {"gate": gate, "up": up, "row_scale": row_scale}
        out = jax.ShapeDtypeStruct((*gate.shape[:-1], cols_of(gate, up, options)), gate.dtype)
        return _ffi.call("gated_activation", arrays, {"out": out}, options)

    axes, rows = _axes(gate, up, options)
    return _sharding.cut(run, (gate, up, row_scale), (axes, axes, rows), [_sharding.Result(axes)])[
        0
    ]


def _backward_call(dy, gate, up, row_scale, options):
    """(dgate, dup), None for those not needed; dgate is packed if gate is."""
    wanted = options.need_dgate, options.need_dup and up is not None
    if not any(wanted):
        return None, None

    def run(dy, gate, up, row_scale):
        arrays = {"dy": dy, "gate": gate, "up": up, "row_scale": row_scale}
        made = zip(("dgate", "dup"), wanted, strict=True)
        results = {name: _ffi.like(gate) for name, is_wanted in made if is_wanted}
        return _ffi.call("gated_activation_backward", arrays, results, options)

    operands = (dy, gate, up, row_scale)
    axes, rows = _axes(gate, up, options)
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
    backward = _arguments.options_of_backward(options)._replace(need_dgate=True, need_dup=True)
    dgate, dup = _backward_call(dy, gate, up, row_scale, backward)
    dscale = None
    if row_scale is not None:  # XLA removes it if it is unused
        out = _forward_call(gate, up, None, options).astype(row_scale.dtype)
        dscale = (dy.astype(row_scale.dtype) * out).sum(-1)
    return dgate, dup, dscale


_forward.defvjp(_forward_saving, _gradients)
