# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A gated activation and the projection after it, which save no activation for the backward."""

from __future__ import annotations

import torch

from membound import _core
from membound.torch._functions import is_plain_call, one_call
from membound.torch._gated_activation import activation_gradients, gated_activation, resolved
from membound.torch._operators import check_tensor
from membound.torch._recording import records


class _GatedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up, weight, bias, options):
        ctx.save_for_backward(gate, up, weight, *([] if bias is None else [bias]))
        ctx.options = options
        hidden = _core.gated_activation(gate, up, **options)
        return torch.nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        gate, up, weight, *bias = ctx.saved_tensors
        wants_gate, wants_up, wants_weight, wants_bias = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # create_graph: use the two calls
            given = (gate, up, weight, bias[0] if bias else None)
            return _recorded_gradients(dy, given, ctx.needs_input_grad, ctx.options)
        rows = dy.reshape(-1, dy.shape[-1])  # as torch's own linear does
        dgate = dup = dweight = dbias = None
        if wants_weight:  # first, so that the activation is freed before its gradient is made
            hidden = gated_activation(gate, up, **ctx.options)
            hidden = hidden.reshape(-1, hidden.shape[-1]).to(dy.dtype)
            dweight = (rows.mT @ hidden).to(weight.dtype)
            del hidden
        if wants_bias:
            dbias = rows.sum(0).to(bias[0].dtype)
        if wants_gate or wants_up:
            dhidden = (rows @ weight.to(dy.dtype)).to(gate.dtype)
            dhidden = dhidden.view(*dy.shape[:-1], dhidden.shape[-1])
            wanted = wants_gate, wants_up
            dgate, dup = activation_gradients(dhidden, gate, up, wanted, ctx.options)
        return dgate, dup, dweight, dbias, None


def _recorded_gradients(dy, given, wanted, options):
    leaves = [t for t, want in zip(given, wanted, strict=False) if want]
    result = _two_calls(*given, options)
    found = iter(torch.autograd.grad(result, leaves, dy, create_graph=True))
    return tuple(next(found) if want else None for want in wanted)


def _two_calls(gate, up, weight, bias, options):
    return torch.nn.functional.linear(gated_activation(gate, up, **options), weight, bias)


@one_call
def gated_linear(
    gate, up, weight, bias=None, *, kind="silu", packing="halves", alpha=None, limit=None,
    up_offset=0.0,
):  # fmt: skip
    """``linear(act(gate) * up, weight, bias)``, which saves its inputs but not the activation.

    The activation, as large as gate, is recomputed in the backward (Chen et al. 2016,
    arXiv:1604.06174) at the cost of one more read of gate and up and one write; it is a third of
    what autograd saves of a gated MLP. The products are torch's, in autocast's dtype if it is on.
    In compiled code, under torch.func and on tensor subclasses this is :func:`gated_activation` and
    ``torch.nn.functional.linear``; the bits are the same. Second derivatives through the activation
    raise.

    Args:
        gate, up, kind, packing, alpha, limit, up_offset: as of :func:`membound.gated_activation`;
            up is None where gate holds both, or alone with ``packing="gate"``.
        weight: ``(out_features, width)`` for activations of that width.
        bias: ``(out_features,)``, or None.

    Returns:
        ``(..., out_features)``.

    >>> import torch
    >>> gate, up = torch.ones(1, 2), torch.tensor([[2.0, 4.0]])
    >>> gated_linear(gate, up, torch.ones(1, 2), kind="relu2").tolist()
    [[6.0]]
    """
    kind, alpha, limit = resolved(kind, alpha, limit)
    options = {
        "kind": kind, "packing": packing, "alpha": alpha, "limit": limit, "up_offset": up_offset,
    }  # fmt: skip
    for name, value in {"gate": gate, "weight": weight, "bias": bias}.items():
        if name != "bias" or bias is not None:
            check_tensor("gated_linear", name, value)
    if gate.dim() == 0:
        raise ValueError("gated_linear: argument 'gate' must have at least 1 axis, got 0")
    width = gate.shape[-1] if up is not None or packing == "gate" else gate.shape[-1] // 2
    if weight.dim() != 2 or weight.shape[-1] != width:
        raise ValueError(
            f"gated_linear: argument 'weight' must have shape (out_features, {width}), got "
            f"{tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"gated_linear: argument 'bias' must have shape ({weight.shape[0]},), got "
            f"{tuple(bias.shape)}"
        )
    tensors = gate, up, weight, bias
    if is_plain_call(tensors) and records(tensors):
        return _GatedLinear.apply(gate, up, weight, bias, options)
    return _two_calls(gate, up, weight, bias, options)
