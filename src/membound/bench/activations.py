# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for gated activations, with silu; the quantised one writes int8."""

from __future__ import annotations

from functools import partial
from typing import Any

import membound
from membound.bench.contestants import Call, Op
from membound.bench.norms import quantised, quantised_by_torch


def _ours(a: Any) -> Call:
    return partial(membound.silu_and_mul, a.gate, a.up, out=a.out)


def _torch_call(torch: Any, a: Any) -> Call:
    """torch has no fused function: silu, then the product."""
    silu = torch.nn.functional.silu
    return lambda: silu(a.gate) * a.up


def _formula(np: Any, a: Any, wide: Any) -> Any:
    gate = a.gate.astype(wide)
    return (gate / (1 + np.exp(-gate)) * a.up.astype(wide)).astype(a.gate.dtype)


def _ours_backward(a: Any) -> Call:
    return partial(membound.silu_and_mul_backward, a.dy, a.gate, a.up, dgate=a.dgate, dup=a.dup)


def _torch_backward(torch: Any, a: Any) -> Call | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.gate.is_cuda:
        return None
    leaves = [one.detach().requires_grad_() for one in (a.gate, a.up)]
    out = torch.nn.functional.silu(leaves[0]) * leaves[1]
    return partial(torch.autograd.grad, out, leaves, a.dy, retain_graph=True)


def _formula_of_gradients(np: Any, a: Any, wide: Any) -> Any:
    dy, gate = a.dy.astype(wide), a.gate.astype(wide)
    s = 1 / (1 + np.exp(-gate))
    dgate = dy * a.up.astype(wide) * (s * (1 + gate * (1 - s)))
    return dgate.astype(a.gate.dtype), (dy * gate * s).astype(a.gate.dtype)


def _ours_quantised(a: Any) -> Call:
    call = partial(membound.silu_and_mul_quant, a.gate, a.up, dtype="int8")
    out, scale = call()
    return partial(call, out=out, scale_out=scale)


def _torch_quantised(torch: Any, a: Any) -> Call:
    activation = _torch_call(torch, a)
    return lambda: quantised_by_torch(torch, activation())


def _quantised_formula(np: Any, a: Any, wide: Any) -> Any:
    return quantised(np, _formula(np, a, wide).astype(wide))


OPS = (
    Op("gated_activation", ("gate", "up"), ("out",), _ours, _torch_call, _formula),
    Op(
        "gated_activation_backward",
        ("dy", "gate", "up"),
        ("dgate", "dup"),
        _ours_backward,
        _torch_backward,
        _formula_of_gradients,
    ),
    Op(
        "gated_activation_quant",
        ("gate", "up"),
        (),
        _ours_quantised,
        _torch_quantised,
        _quantised_formula,
        quantised=True,
    ),
)
