# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for element-wise ops: the first sample of each number; torch by the formula."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import membound
from membound import _elementwise
from membound.bench.contestants import Call, Op


def _row(name: str, op: _elementwise.Elementwise) -> Op:
    numbers = [values[0] for values in op.samples.values()]

    def inputs(a: Any) -> list[Any]:
        return [getattr(a, array) for array in op.inputs]

    def ours(a: Any) -> Call:
        function: Callable[..., Any] = getattr(membound, name)
        return partial(function, *inputs(a), *numbers, **{op.result: getattr(a, op.result)})

    def by_torch(torch: Any, a: Any) -> Call:
        return partial(op.formula, torch, *inputs(a), *numbers)

    def by_formula(np: Any, a: Any, wide: Any) -> Any:
        arrays = inputs(a)
        return op.formula(np, *(one.astype(wide) for one in arrays), *numbers).astype(
            arrays[-1].dtype
        )

    return Op(name, op.inputs, (op.result,), ours, by_torch, by_formula)


OPS = tuple(_row(name, op) for name, op in _elementwise.OPS.items())
