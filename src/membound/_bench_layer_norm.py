# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for layer_norm; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound

READ, WRITTEN = ("x",), ("out",)
CENTRED = True


def ours(a: Any) -> Any:
    return membound.layer_norm(a.x, a.weight, a.bias, eps=a.eps, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    return partial(torch.nn.functional.layer_norm, a.x, a.weight.shape, a.weight, a.bias, a.eps)


def formula(np: Any, a: Any, wide: Any) -> Any:
    return normalised(np, a, a.x.astype(wide), wide).astype(a.x.dtype)


def normalised(np: Any, a: Any, x: Any, wide: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((apart * apart).mean(-1, keepdims=True) + a.eps)
    return apart * rstd * a.weight.astype(wide) + a.bias.astype(wide)
