# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How the operators act on DTensors: where rows are sharded every rank does its own.

Gradients of what all rows share (weights, biases) are then sums over the ranks, left as they are
(Partial) until something asks for the whole: one all-reduce of one row, and nothing is gathered. A
tensor sharded along its last axis is gathered first.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from membound.torch._operators import Operator

_operators: list[Operator] = []


def announce(op: Operator) -> None:
    """Remember an operator; torch.distributed is told of it when that is in use."""
    _operators.append(op)


def tell_dtensor() -> None:
    """Tell DTensor of all operators, once it is there. Importing it takes a second."""
    if "torch.distributed.tensor" in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for op in _operators:
        if op.rows:
            names = torch.ops.membound
            forward, backward = (getattr(names, f"{op.name}_{w}") for w in ("forward", "backward"))
            register_sharding(forward.default)(functools.partial(_of_forward, op))
            register_sharding(backward.default)(functools.partial(_of_backward, op))


def _of_forward(op: Operator, *arguments: Any) -> list[Any]:
    """Every way that the rows can lie: (placements of results, placements of arguments)."""
    names = [name.rstrip("?") for name in op.tensors]
    by_name = dict(zip(names, arguments, strict=False))
    options = [None] * len(op.options)
    return [
        (
            [placement for _ in op.results],
            [_of_input(by_name[n], placement, in_rows=n in op.rows) for n in names] + options,
        )
        for placement in _placements(by_name)
    ]


def _of_backward(op: Operator, *arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate

    incoming = [f"d{name}" for name, flows in op.results.items() if flows]
    names = [*incoming, *op.saves]
    by_name = dict(zip(names, arguments, strict=False))
    in_rows = {*incoming, *op.rows, *op.results}
    found = []
    for placement in _placements(by_name):
        shared = placement if placement.is_replicate() else Partial()
        results = [
            (placement if like in in_rows else shared) if wanted else Replicate()
            for like, wanted in zip(op.gradients.values(), arguments[-1], strict=True)
        ]
        inputs = [_of_input(by_name[n], placement, in_rows=n in in_rows) for n in names]
        found.append((results, [*inputs, *(None for _ in op.options), None]))
    return found


def _of_input(given: Any, placement: Any, *, in_rows: bool) -> Any:
    from torch.distributed.tensor import Replicate

    if given is None:
        return None
    return placement if in_rows else Replicate()


def _placements(by_name: dict[str, Any]) -> list[Any]:
    """Replicated, or sharded along an axis of rows. Weights of heads keep the heads together."""
    from torch.distributed.tensor import Replicate, Shard

    first = next(iter(by_name.values()))
    weight = by_name.get("weight")
    axes = first.ndim - (2 if weight is not None and weight.ndim == 2 else 1)
    return [Replicate(), *(Shard(axis) for axis in range(axes))]
