# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for layer_norm_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("dy", "x"), ("dx",)
CENTRED = True


def ours(a: Any) -> Any:
    return membound.layer_norm_backward(a.dy, a.x, a.weight, a.mean, a.rstd, dx=a.dx)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """Calls the op below autograd, since autograd cannot be captured in a CUDA graph.

    It reads torch's own statistics: on the CPU torch stores those of 16-bit arrays in 16 bits and
    accepts no other dtype.
    """
    aten, shape = torch.ops.aten, a.weight.shape
    _, mean, rstd = aten.native_layer_norm(a.x, shape, a.weight, a.bias, a.eps)
    arrays = (a.dy, a.x, shape, mean, rstd, a.weight, a.bias)
    return partial(aten.native_layer_norm_backward, *arrays, [True, True, True])


def formula(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - every op's has NumPy's functions
    dy, rstd = a.dy.astype(wide), a.rstd[..., None]
    h, g = (a.x.astype(wide) - a.mean[..., None]) * rstd, dy * a.weight.astype(wide)
    dx = rstd * (g - g.mean(-1, keepdims=True) - h * (g * h).mean(-1, keepdims=True))
    kind = a.weight.dtype
    return dx.astype(a.x.dtype), (dy * h).sum(0).astype(kind), dy.sum(0).astype(kind)
