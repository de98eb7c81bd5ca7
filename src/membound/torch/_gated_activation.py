# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated activations: of one packed tensor, of two, and of a gate alone."""

from __future__ import annotations

from typing import Any

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import Operator, contiguous_like, operator
from membound.torch._recording import drop_unwanted, dynamo_traces, raw_operator
from membound.torch._schemas import SCHEMAS

_OPTIONS = SCHEMAS["gated_activation"]["options"]


def _named(options: Any) -> dict[str, Any]:
    return dict(zip(_OPTIONS, options, strict=True))


def _pair_backward(grads, saved, options, wanted):
    gate, up, row_scale = saved
    return _core.gated_activation_backward(
        *grads, gate, up, row_scale=row_scale, need_dgate=wanted[0], need_dup=wanted[1],
        **_named(options),
    )  # fmt: skip


_GATE_AND_UP = operator(
    "gated_activation",
    _pair_backward,
    forward=lambda gate, up, row_scale, *options: (
        _core.gated_activation(gate, up, row_scale=row_scale, **_named(options)),
    ),
    tensors={"gate": "dgate", "up": "dup", "row_scale?": None},
)


def _packed_shape(packed, _row_scale, _kind, packing, *_):
    if packing == "gate":
        return (contiguous_like(packed),)
    return (packed.new_empty((*packed.shape[:-1], packed.shape[-1] // 2)),)


def _packed_backward(grads, saved, options, _):
    packed, row_scale = saved
    return (
        _core.gated_activation_backward(*grads, packed, row_scale=row_scale, **_named(options)),
    )


_PACKED = Operator(
    name="gated_activation_packed",
    tensors={"packed": "dpacked", "row_scale?": None},
    options=_OPTIONS,
    results={"out": True},
    forward=lambda packed, row_scale, *options: (
        _core.gated_activation(packed, row_scale=row_scale, **_named(options)),
    ),
    shapes=_packed_shape,
    saves=("packed", "row_scale"),
    gradients={"dpacked": "packed"},
    backward=_packed_backward,
    rows=("packed", "row_scale"),
)


_of_pair = drop_unwanted(raw_operator(_GATE_AND_UP, "backward"))
_of_packed = drop_unwanted(raw_operator(_PACKED, "backward"))


def activation_gradients(dy, gate, up, wanted, options):
    """The wanted gradients of gate and up; compiled autograd traces operators, not builtins."""
    if not dynamo_traces():
        needs = {} if up is None else dict(zip(("need_dgate", "need_dup"), wanted, strict=True))
        found = _core.gated_activation_backward(dy, gate, up, **needs, **options)
        return (found, None) if up is None else found
    values = [options[name] for name in _OPTIONS]
    if up is None:
        return *_of_packed(dy, gate, None, *values, [True]), None
    return _of_pair(dy, gate, up, None, *values, list(wanted))


_KINDS = dict(_core.ACTIVATIONS)


def resolved(kind, alpha, limit):
    """The canonical kind, and the options implied by the given name."""
    name, own_alpha, own_limit = _KINDS.get(kind, (kind, 1.0, None))
    return name, own_alpha if alpha is None else alpha, own_limit if limit is None else limit


@differentiable("out")
def gated_activation(
    gate, up=None, *, kind="silu", packing="halves", alpha=None, limit=None, up_offset=0.0,
    row_scale=None,
):  # fmt: skip
    """``act(gate) * up``: :func:`membound.gated_activation` with its gradient.

    Saved for the gradient: the inputs. The activation is recomputed from them, and no
    gradient flows to row_scale.

    >>> import torch
    >>> gated_activation(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), kind="relu2").tolist()
    [[0.0, 3.0]]
    """
    kind, alpha, limit = resolved(kind, alpha, limit)
    return _recorded(gate, up, row_scale, kind, packing, alpha, limit, up_offset)


def _recorded(gate, up, row_scale, *options):
    if row_scale is not None and row_scale.requires_grad:
        raise RuntimeError(
            "gated_activation: argument 'row_scale' requires grad, and its gradient is not "
            "computed: pass row_scale.detach(), or multiply the result by it"
        )
    if up is None:
        return _PACKED(gate, row_scale, *options)
    return _GATE_AND_UP(gate, up, row_scale, *options)


def _alias(name: str, kind: str, formula: str) -> Any:
    def with_alpha(gate, up=None, *, packing="halves", alpha=1.0, limit=None, up_offset=0.0,
                   row_scale=None):  # fmt: skip
        return _recorded(gate, up, row_scale, kind, packing, alpha, limit, up_offset)

    def without(gate, up=None, *, packing="halves", limit=None, up_offset=0.0, row_scale=None):
        return _recorded(gate, up, row_scale, kind, packing, 1.0, limit, up_offset)

    recorded = without if kind.startswith("gelu") else with_alpha  # gelu has no alpha
    recorded.__name__ = recorded.__qualname__ = name
    recorded.__doc__ = f"``{formula}``: :func:`membound.{name}` with its gradient."
    return differentiable("out")(recorded)


silu_and_mul = _alias("silu_and_mul", "silu", "silu(gate) * up")
gelu_and_mul = _alias("gelu_and_mul", "gelu", "gelu(gate) * up")
gelu_tanh_and_mul = _alias("gelu_tanh_and_mul", "gelu_tanh", "gelu(gate, 'tanh') * up")
sigmoid_and_mul = _alias("sigmoid_and_mul", "sigmoid", "sigmoid(gate) * up")


@differentiable("out")
def relu2(gate, *, row_scale=None):
    """``relu(gate) ** 2``: :func:`membound.relu2` with its gradient.

    >>> import torch
    >>> relu2(torch.tensor([[-1.0, 3.0]])).tolist()
    [[0.0, 9.0]]
    """
    return _recorded(gate, None, row_scale, "relu2", "gate", 1.0, None, 0.0)
