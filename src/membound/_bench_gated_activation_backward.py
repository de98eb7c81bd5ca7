# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for gated_activation_backward, with silu; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("dy", "gate", "up"), ("dgate", "dup")


def ours(a: Any) -> Any:
    return membound.silu_and_mul_backward(a.dy, a.gate, a.up, dgate=a.dgate, dup=a.dup)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.gate.is_cuda:
        return None
    leaves = [one.detach().requires_grad_() for one in (a.gate, a.up)]
    out = torch.nn.functional.silu(leaves[0]) * leaves[1]
    return partial(torch.autograd.grad, out, leaves, a.dy, retain_graph=True)


def formula(np: Any, a: Any, wide: Any) -> Any:
    dy, gate = a.dy.astype(wide), a.gate.astype(wide)
    s = 1 / (1 + np.exp(-gate))
    dgate = dy * a.up.astype(wide) * (s * (1 + gate * (1 - s)))
    return dgate.astype(a.gate.dtype), (dy * gate * s).astype(a.gate.dtype)
