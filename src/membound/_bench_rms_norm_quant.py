# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm_quant, to int8; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_rms_norm

READ, WRITTEN = ("x",), ()
QUANTISED = ("out",)
CENTRED = False


def new_results(a: Any) -> Any:
    return membound.rms_norm_quant(a.x, dtype="int8", eps=a.eps)


def ours(a: Any) -> Any:
    return membound.rms_norm_quant(
        a.x, a.weight, dtype="int8", eps=a.eps, out=a.out, scale_out=a.scale
    )


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    norm = _bench_rms_norm.torch_call(torch, a)
    return lambda: quantised_by_torch(torch, norm())


def formula(np: Any, a: Any, wide: Any) -> Any:
    return quantised(np, _bench_rms_norm.formula(np, a, wide).astype(wide))


def quantised_by_torch(torch: Any, y: Any) -> Any:
    scale = y.abs().amax(-1, keepdim=True).float() / 127
    return (y / scale).round().to(torch.int8), scale


def quantised(np: Any, y: Any) -> Any:
    scale = np.abs(y).max(-1, keepdims=True) / 127
    return np.round(y / scale).astype("int8"), scale
