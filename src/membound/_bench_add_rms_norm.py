# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for add_rms_norm; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("x", "residual"), ("out", "residual_out")
CENTRED = False


def ours(a: Any) -> Any:
    return membound.add_rms_norm(
        a.x, a.residual, a.weight, eps=a.eps, out=a.out, residual_out=a.residual_out
    )


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    def call() -> Any:
        total = a.x + a.residual
        return torch.nn.functional.rms_norm(total, a.weight.shape, a.weight, a.eps), total

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    total = a.x.astype(wide) + a.residual.astype(wide)
    rstd = 1 / np.sqrt((total * total).mean(-1, keepdims=True) + a.eps)
    out = total * rstd * a.weight.astype(wide)
    return out.astype(a.x.dtype), total.astype(a.x.dtype)
