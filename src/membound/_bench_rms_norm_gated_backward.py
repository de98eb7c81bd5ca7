# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm_gated_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("dy", "x", "z"), ("dx", "dz")
CENTRED = False


def ours(a: Any) -> Any:
    return membound.rms_norm_gated_backward(a.dy, a.x, a.z, a.weight, a.rstd, dx=a.dx, dz=a.dz)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.x.is_cuda:
        return None
    functions = torch.nn.functional
    leaves = [one.detach().requires_grad_() for one in (a.x, a.z, a.weight)]
    out = functions.rms_norm(leaves[0], a.weight.shape, leaves[2], a.eps)
    out = out * functions.silu(leaves[1])
    return partial(torch.autograd.grad, out, leaves, a.dy, retain_graph=True)


def formula(np: Any, a: Any, wide: Any) -> Any:
    dy, z, rstd = a.dy.astype(wide), a.z.astype(wide), a.rstd[..., None]
    s = 1 / (1 + np.exp(-z))
    h, weight, of_norm = a.x.astype(wide) * rstd, a.weight.astype(wide), dy * (z * s)
    g = of_norm * weight
    dx = rstd * (g - h * (g * h).mean(-1, keepdims=True))
    dz = dy * h * weight * (s * (1 + z * (1 - s)))
    kind = a.x.dtype
    return dx.astype(kind), dz.astype(kind), (of_norm * h).sum(0).astype(a.weight.dtype)
