# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for gated_activation_quant, with silu to int8; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_gated_activation, _bench_rms_norm_quant

READ, WRITTEN = ("gate", "up"), ()
QUANTISED = ("out",)


def new_results(a: Any) -> Any:
    return membound.silu_and_mul_quant(a.gate, a.up, dtype="int8")


def ours(a: Any) -> Any:
    return membound.silu_and_mul_quant(a.gate, a.up, dtype="int8", out=a.out, scale_out=a.scale)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    activation = _bench_gated_activation.torch_call(torch, a)
    return lambda: _bench_rms_norm_quant.quantised_by_torch(torch, activation())


def formula(np: Any, a: Any, wide: Any) -> Any:
    y = _bench_gated_activation.formula(np, a, wide).astype(wide)
    return _bench_rms_norm_quant.quantised(np, y)
