# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for embedding: the matrix is the table, and every row is looked up once.

See _bench_contestants.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import membound

READ, WRITTEN = ("x",), ("out",)
STEP = 7919  # stride between consecutive ids; a prime visits each row once, scattered


def ids_of(module: Any, x: Any, **options: Any) -> Any:
    rows = x.shape[0]
    return module.arange(rows, **options) * (STEP if rows % STEP else 1) % rows


def ours(a: Any) -> Any:
    if not hasattr(a, "ids"):  # made at the first call
        name = type(a.x).__module__.split(".")[0]
        options = {"device": a.x.device} if name == "torch" else {}
        a.ids = ids_of(importlib.import_module(name), a.x, **options)
    return membound.embedding(a.ids, a.x, out=a.out)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    ids = ids_of(torch, a.x, device=a.x.device)
    return lambda: torch.nn.functional.embedding(ids, a.x)


def formula(np: Any, a: Any, wide: Any) -> Any:  # noqa: ARG001 - nothing is summed
    return a.x[ids_of(np, a.x)]
