# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for add_rms_norm_quant, to int8; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_add_rms_norm, _bench_rms_norm_quant
from membound._bench_rms_norm_quant import quantised, quantised_by_torch

READ, WRITTEN = ("x", "residual"), ("residual_out",)
QUANTISED = ("out",)
CENTRED = False
new_results = _bench_rms_norm_quant.new_results


def ours(a: Any) -> Any:
    return membound.add_rms_norm_quant(
        a.x, a.residual, a.weight, dtype="int8", eps=a.eps,
        out=a.out, residual_out=a.residual_out, scale_out=a.scale,
    )  # fmt: skip


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    norm = _bench_add_rms_norm.torch_call(torch, a)

    def call() -> Any:
        y, total = norm()
        return *quantised_by_torch(torch, y), total

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    y, total = _bench_add_rms_norm.formula(np, a, wide)
    return *quantised(np, y.astype(wide)), total
