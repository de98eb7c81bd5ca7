# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for add_layer_norm; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_layer_norm as plain

READ, WRITTEN = ("x", "residual"), ("out", "residual_out")
CENTRED = True


def ours(a: Any) -> Any:
    return membound.add_layer_norm(
        a.x, a.residual, a.weight, a.bias, eps=a.eps, out=a.out, residual_out=a.residual_out
    )


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    norm = torch.nn.functional.layer_norm

    def call() -> Any:
        total = a.x + a.residual
        return norm(total, a.weight.shape, a.weight, a.bias, a.eps), total

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    total = a.x.astype(wide) + a.residual.astype(wide)
    out = plain.normalised(np, a, total, wide)
    return out.astype(a.x.dtype), total.astype(a.x.dtype)
