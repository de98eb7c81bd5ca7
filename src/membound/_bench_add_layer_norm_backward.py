# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for add_layer_norm_backward; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_layer_norm_backward as plain

READ, WRITTEN = ("dy", "dresidual_out", "x"), ("dx",)
CENTRED = True


def ours(a: Any) -> Any:
    return membound.add_layer_norm_backward(
        a.dy, a.dresidual_out, a.x, a.weight, a.mean, a.rstd, dx=a.dx
    )


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """torch's two steps: the norm's backward, then the sum."""
    norm = plain.torch_call(torch, a)

    def call() -> Any:
        dx, *rest = norm()
        return dx.add_(a.dresidual_out), *rest

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    dx, *rest = plain.formula(np, a, wide)
    return dx + a.dresidual_out, *rest
