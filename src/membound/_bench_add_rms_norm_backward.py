# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for add_rms_norm_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_rms_norm_backward as plain

READ, WRITTEN = ("dy", "dresidual_out", "x"), ("dx",)
CENTRED = False


def ours(a: Any) -> Any:
    return membound.add_rms_norm_backward(a.dy, a.dresidual_out, a.x, a.weight, a.rstd, dx=a.dx)


def torch_call(torch: Any, a: Any) -> Callable[[], Any] | None:
    """torch's two steps: the norm's backward, then the sum."""
    norm = plain.torch_call(torch, a)
    if norm is None:
        return None

    def call() -> Any:
        dx, dweight = norm()
        return dx.add_(a.dresidual_out), dweight

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    dx, dweight = plain.formula(np, a, wide)
    return dx + a.dresidual_out, dweight
