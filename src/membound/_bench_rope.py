# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rope: rows are tokens, columns heads of 128; see _bench_contestants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound._rope_table import rope_table

READ, WRITTEN = ("x",), ("out",)
CENTRED = False
SEQUENCES = True  # rows are tokens of one
HEAD_DIM = 128


def as_heads(x: Any) -> Any:
    rows, cols = x.shape
    return x.reshape((1, rows, -1, cols if cols % HEAD_DIM else HEAD_DIM))


def prepared(a: Any) -> Any:
    """Views of the matrices as heads, and the tables, made at the first call."""
    if not hasattr(a, "heads"):
        a.heads, a.rotated = as_heads(a.x), as_heads(a.out)
        a.cos, a.sin, _ = rope_table(None, a.heads.shape[-1], a.heads.shape[1], like=a.x)
    return a


def ours(a: Any) -> Any:
    a = prepared(a)
    return membound.rope(a.heads, None, a.cos, a.sin, out=a.rotated)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """The formula that models use, in the dtype of x."""
    x = as_heads(a.x)
    tables = rope_table(None, x.shape[-1], x.shape[1], like=a.x)[:2]
    cos, sin = (torch.cat([table, table], 1)[:, None].to(x.dtype) for table in tables)
    half = x.shape[-1] // 2

    def call() -> Any:
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return call


def formula(np: Any, a: Any, wide: Any) -> Any:
    return rotated(np, a.x, wide, 1)


def rotated(np: Any, matrix: Any, wide: Any, sign: int) -> Any:
    x = as_heads(matrix)
    seq, _, head_dim = x.shape[1:]
    half = head_dim // 2
    angles = np.arange(seq)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = (part(angles)[:, None].astype(wide) for part in (np.cos, np.sin))
    first, second = x[..., :half].astype(wide), x[..., half:].astype(wide)
    sin = sign * sin
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
        x.dtype
    )
