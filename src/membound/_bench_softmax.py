# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for softmax; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("x",), ("out",)


def ours(a: Any) -> Any:
    return membound.softmax(a.x, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    return lambda: torch.softmax(a.x, -1)


def formula(np: Any, a: Any, wide: Any) -> Any:
    x = a.x.astype(wide)
    power = np.exp(x - x.max(-1, keepdims=True))
    return (power / power.sum(-1, keepdims=True)).astype(a.x.dtype)
