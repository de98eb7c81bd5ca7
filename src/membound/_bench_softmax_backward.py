# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for softmax_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("dy", "y"), ("dx",)


def ours(a: Any) -> Any:
    return membound.softmax_backward(a.dy, a.y, dx=a.dx)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    backward = torch._softmax_backward_data
    return lambda: backward(a.dy, a.y, -1, a.y.dtype)


def formula(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - NumPy's functions are not needed
    dy, y = a.dy.astype(wide), a.y.astype(wide)
    return (y * (dy - (dy * y).sum(-1, keepdims=True))).astype(a.y.dtype)
