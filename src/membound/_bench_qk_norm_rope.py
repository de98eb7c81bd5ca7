# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for qk_norm_rope: rows are tokens, columns heads; see _bench_rope.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound
from membound import _bench_rope as rope

READ, WRITTEN = ("x",), ("out",)
CENTRED = False
SEQUENCES = True  # rows are tokens of one
EPS = 1e-6


def prepared(a: Any) -> Any:
    a = rope.prepared(a)
    a.head_weight = a.weight[: a.heads.shape[-1]]
    return a


def ours(a: Any) -> Any:
    a = prepared(a)
    return membound.qk_norm_rope(a.heads, None, a.head_weight, None, a.cos, a.sin, out=a.rotated)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """The formula that models use, in the dtype of x."""
    return partial(in_torch(torch, a), rope.as_heads(a.x))


def in_torch(torch: Any, a: Any) -> Callable[[Any], Any]:
    """Return the norm and rotation as a function of heads."""
    like = rope.as_heads(a.x)
    half = like.shape[-1] // 2
    tables = rope.rope_table(None, like.shape[-1], like.shape[1], like=a.x)[:2]
    cos, sin = (torch.cat([table, table], 1)[:, None].to(like.dtype) for table in tables)
    weight = a.weight[: like.shape[-1]]

    def call(x: Any) -> Any:
        wide = x.float() if x.element_size() < 4 else x
        y = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
        return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin

    return call


def normalised(np: Any, matrix: Any, wide: Any) -> tuple[Any, Any]:
    """The heads in a wide dtype, divided by their root mean square, and rstd."""
    x = rope.as_heads(matrix).astype(wide)
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * rstd, rstd


def formula(np: Any, a: Any, wide: Any) -> Any:
    normed, _ = normalised(np, a.x, wide)
    return rope.rotated(np, normed.reshape(a.x.shape), wide, 1).astype(a.x.dtype)
