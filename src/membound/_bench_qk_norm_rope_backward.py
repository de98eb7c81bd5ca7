# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for qk_norm_rope_backward; see _bench_qk_norm_rope.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound
from membound import _bench_qk_norm_rope as forward
from membound import _bench_rope as rope

READ, WRITTEN = ("x", "dy"), ("out",)
CENTRED = False
SEQUENCES = True  # rows are tokens of one


def ours(a: Any) -> Any:
    a = forward.prepared(a)
    a.gradient = rope.as_heads(a.dy)
    return membound.qk_norm_rope_backward(
        a.gradient, None, a.heads, None, a.head_weight, None, a.cos, a.sin, dq_out=a.rotated
    )


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """The backward alone; autograd cannot be captured in a CUDA graph."""
    if a.x.is_cuda:
        return None
    x = rope.as_heads(a.x).detach().requires_grad_()
    out = forward.in_torch(torch, a)(x)
    return partial(torch.autograd.grad, out, x, rope.as_heads(a.dy), retain_graph=True)


def formula(np: Any, a: Any, wide: Any) -> Any:
    h, rstd = forward.normalised(np, a.x, wide)
    g = rope.rotated(np, a.dy.astype(wide), wide, -1)
    return (rstd * (g - h * (g * h).mean(-1, keepdims=True))).astype(a.x.dtype)
