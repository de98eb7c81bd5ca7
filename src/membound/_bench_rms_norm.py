# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("x",), ("out",)
CENTRED = False


def ours(a: Any) -> Any:
    return membound.rms_norm(a.x, a.weight, eps=a.eps, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    return partial(torch.nn.functional.rms_norm, a.x, a.weight.shape, a.weight, a.eps)


def formula(np: Any, a: Any, wide: Any) -> Any:
    x = a.x.astype(wide)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + a.eps)
    return (x * rstd * a.weight.astype(wide)).astype(a.x.dtype)
