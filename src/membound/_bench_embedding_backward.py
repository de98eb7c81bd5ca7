# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for embedding_backward: a table of as many rows as there are tokens.

See _bench_contestants.py and _bench_embedding.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import membound
from membound._bench_embedding import ids_of

READ, WRITTEN = ("x",), ("out",)  # x: the gradient of the rows looked up


def ours(a: Any) -> Any:
    if not hasattr(a, "ids"):  # made at the first call
        name = type(a.x).__module__.split(".")[0]
        options = {"device": a.x.device} if name == "torch" else {}
        a.ids = ids_of(importlib.import_module(name), a.x, **options)
    return membound.embedding_backward(a.x, a.ids, a.x.shape[0], out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    ids = ids_of(torch, a.x, device=a.x.device)
    return lambda: torch.ops.aten.embedding_dense_backward(a.x, ids, a.x.shape[0], -1, False)


def formula(np: Any, a: Any, wide: Any) -> Any:
    ids = ids_of(np, a.x)
    sums = np.zeros(a.x.shape, wide)
    if hasattr(sums, "at"):  # JAX's
        return sums.at[ids].add(a.x.astype(wide)).astype(a.x.dtype)
    np.add.at(sums, ids, a.x.astype(wide))
    return sums.astype(a.x.dtype)
