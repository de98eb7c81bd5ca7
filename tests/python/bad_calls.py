# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments that every op refuses, and a check that a call with one fails as documented."""

from __future__ import annotations

import array
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Call = dict[str, Any]
Case = tuple[str, Callable[..., Call], type[Exception], str]

SHAPE = (3, 4)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape or SHAPE, np.float32)


def overlapping() -> Call:
    buffer = f32(5, 4)
    return {"x": buffer[:3], "out": buffer[1:4]}


def record_with_float() -> np.ndarray:
    return np.ones(SHAPE, [("a", "f4"), ("b", "i1")])["a"]


def unaligned() -> np.ndarray:
    return np.ones(13 * 4, np.uint8)[1:49].view(np.float32).reshape(SHAPE)


def released() -> memoryview:
    view = memoryview(array.array("f", [1.0]))
    view.release()
    return view


class Subclass(np.ndarray):
    pass


def read_only() -> np.ndarray:
    frozen = f32()
    frozen.flags.writeable = False
    return frozen


def shared_with_weight() -> Call:
    out = f32()
    return {"weight": out[1], "out": out}


# Arguments that ops write. Other torch tensors here may have no memory to compare.
WRITTEN = ("out", "residual_out", "dx", "dz", "dweight", "dbias", "input")
WRITTEN += (
    "k_out",
    "key_cache",
    "value_cache",
    "dq_out",
    "dk_out",
    "dfreqs",
    "dq_weight",
    "dk_weight",
)


def check(op: Callable[..., Any], call: Call, good: Call, expected: Any, argument: str) -> None:
    """Run the call; check the exception, and that nothing was written."""
    arguments = {**good, **call}
    before = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            before[name] = value.tobytes()
        elif name in WRITTEN and hasattr(value, "clone"):
            before[name] = value.clone()
    with pytest.raises(expected, match=rf"^{re.escape(op.__name__)}: ") as caught:
        op(**arguments)
    assert f"'{argument}'" in str(caught.value)
    assert "\n" not in str(caught.value)
    for name, value in before.items():
        now = arguments[name]
        assert now.tobytes() == value if isinstance(value, bytes) else (now == value).all(), name
