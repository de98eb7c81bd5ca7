# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rope_backward; see _bench_rope.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound import _bench_rope as rope

READ, WRITTEN = ("x",), ("out",)  # x: the gradient of rope's result
CENTRED = False
SEQUENCES = True  # rows are tokens of one


def ours(a: Any) -> Any:
    a = rope.prepared(a)
    return membound.rope_backward(a.heads, None, a.cos, a.sin, dq_out=a.rotated)


def torch_call(torch: Any, a: Any) -> Callable[[], Any]:
    """The models' forward formula: the gradient has the same terms."""
    return rope.torch_call(torch, a)


def formula(np: Any, a: Any, wide: Any) -> Any:
    return rope.rotated(np, a.x, wide, -1)
