# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for gated_activation, with silu; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("gate", "up"), ("out",)


def ours(a: Any) -> Any:
    return membound.silu_and_mul(a.gate, a.up, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """torch has no fused function: silu, then the product."""
    silu = torch.nn.functional.silu
    return lambda: silu(a.gate) * a.up


def formula(np: Any, a: Any, wide: Any) -> Any:
    gate = a.gate.astype(wide)
    return (gate / (1 + np.exp(-gate)) * a.up.astype(wide)).astype(a.gate.dtype)
