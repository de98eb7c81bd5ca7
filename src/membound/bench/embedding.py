# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for embedding: the matrix is the table, and every row is looked up once.

Of the gradient the matrix x has the rows looked up, and the table as many rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import membound
from membound.bench.contestants import Call, Op, scattered


def _ours(a: Any) -> Call:
    return partial(membound.embedding, scattered(a.x, a.x.shape[0]), a.x, out=a.out)


def _torch_call(torch: Any, a: Any) -> Call:
    ids = scattered(a.x, a.x.shape[0])
    return lambda: torch.nn.functional.embedding(ids, a.x)


def _formula(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - nothing is summed
    return a.x[scattered(a.x, a.x.shape[0], np)]


def _ours_backward(a: Any) -> Call:
    rows = a.x.shape[0]
    return partial(membound.embedding_backward, a.x, scattered(a.x, rows), rows, out=a.out)


def _torch_backward(torch: Any, a: Any) -> Call:
    ids = scattered(a.x, a.x.shape[0])
    return lambda: torch.ops.aten.embedding_dense_backward(a.x, ids, a.x.shape[0], -1, False)


def _formula_of_gradient(np: Any, a: Any, wide: Any) -> Any:
    ids = scattered(a.x, a.x.shape[0], np)
    sums = np.zeros(a.x.shape, wide)
    if hasattr(sums, "at"):  # JAX's
        return sums.at[ids].add(a.x.astype(wide)).astype(a.x.dtype)
    np.add.at(sums, ids, a.x.astype(wide))
    return sums.astype(a.x.dtype)


OPS = (
    Op("embedding", ("x",), ("out",), _ours, _torch_call, _formula),
    Op(
        "embedding_backward",
        ("x",),
        ("out",),
        _ours_backward,
        _torch_backward,
        _formula_of_gradient,
    ),
)
