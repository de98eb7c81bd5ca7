# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm_gated; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("x", "z"), ("out",)
CENTRED = False


def ours(a: Any) -> Any:
    return membound.rms_norm_gated(a.x, a.z, a.weight, eps=a.eps, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """torch has no fused function: norm, gate, then their product."""
    functions, shape = torch.nn.functional, a.weight.shape
    return lambda: functions.rms_norm(a.x, shape, a.weight, a.eps) * functions.silu(a.z)


def formula(np: Any, a: Any, wide: Any) -> Any:
    x, z = a.x.astype(wide), a.z.astype(wide)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + a.eps)
    return (x * rstd * a.weight.astype(wide) * (z / (1 + np.exp(-z)))).astype(a.x.dtype)
