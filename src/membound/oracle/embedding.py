# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by their numbers, and the gradient of the table: sums over tokens of one number.

The contract promises the bits, so that the formulas round in the accumulator's dtype as the ops do:
float64 for float64, else float32.
"""

from __future__ import annotations

from membound.oracle import np


def accumulator(x: np.ndarray) -> type[np.floating]:
    return np.float64 if x.dtype == np.float64 else np.float32


def embedding(
    ids: np.ndarray,
    weight: np.ndarray,
    scale: float = 1.0,
    start: int = 0,
    position_weight: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
) -> np.ndarray:
    """weight[ids - start] * scale + position_weight[position_ids], 0 for ids not in the table."""
    wide = accumulator(weight)
    rows = np.asarray(ids.astype(object) - start, object)  # of any size
    inside = np.array([0 <= row < len(weight) for row in rows.ravel()], bool).reshape(ids.shape)
    rows = np.where(inside, rows, 0).astype(np.int64)
    out = weight[rows].astype(wide) * wide(scale)
    if position_weight is not None:
        if position_ids is None:
            position_ids = np.broadcast_to(np.arange(ids.shape[-1]), ids.shape)
        has = (position_ids >= 0) & (position_ids < len(position_weight))
        more = position_weight[np.where(has, position_ids, 0)].astype(wide)
        out = np.where(has[..., None], out + more, out)
    return np.where(inside[..., None], out, 0)


def in_order(rows: np.ndarray) -> np.ndarray:
    total = -np.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total


def tree(rows: np.ndarray) -> np.ndarray:
    """The reduction tree: segments of 32 in order; several segments go to 16 partial sums."""
    pieces = np.array([in_order(rows[at : at + 32]) for at in range(0, len(rows), 32)])
    if len(pieces) == 1:
        return pieces[0]
    return in_order(np.array([in_order(pieces[at::16]) for at in range(min(16, len(pieces)))]))


def embedding_backward(
    dy: np.ndarray,
    ids: np.ndarray,
    vocab: int,
    scale: float = 1.0,
    start: int = 0,
    padding: int | None = None,
    by_frequency: bool = False,
) -> np.ndarray:
    """The sum of dy over the tokens of each row, in the order of the tree."""
    wide = accumulator(dy)
    rows = dy.reshape(-1, dy.shape[-1]).astype(wide)
    flat = ids.ravel()
    out = np.zeros((vocab, dy.shape[-1]), wide)
    for one in set(flat.tolist()):
        if one == padding or not start <= one < start + vocab:
            continue
        tokens = np.flatnonzero(flat == one)
        factor = wide(scale) / wide(len(tokens)) if by_frequency else wide(scale)
        out[one - start] = tree(rows[tokens]) * factor
    return out
