# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("dy", "x"), ("dx",)
CENTRED = False


def ours(a: Any) -> Any:
    return membound.rms_norm_backward(a.dy, a.x, a.weight, a.rstd, dx=a.dx)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """Calls the op below autograd, since autograd cannot be captured in a CUDA graph."""
    if a.x.is_cuda:
        fused = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
        if fused is None:
            return None
        return partial(fused, a.dy, a.x, a.weight.shape, a.rstd[..., None], a.weight, [True, True])
    leaves = [one.detach().requires_grad_() for one in (a.x, a.weight)]
    out = torch.nn.functional.rms_norm(leaves[0], a.weight.shape, leaves[1], a.eps)
    return partial(torch.autograd.grad, out, leaves, a.dy, retain_graph=True)


def formula(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - every op's has NumPy's functions
    dy, rstd = a.dy.astype(wide), a.rstd[..., None]
    h, g = a.x.astype(wide) * rstd, dy * a.weight.astype(wide)
    dx = rstd * (g - h * (g * h).mean(-1, keepdims=True))
    return dx.astype(a.x.dtype), (dy * h).sum(0).astype(a.weight.dtype)
