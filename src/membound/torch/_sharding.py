# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How the operators act on DTensors: where rows are sharded every rank does its own.

Gradients of what all ranks share (weights, biases, tables) are then sums over the ranks, left as
they are (Partial) until something asks for the whole: one all-reduce of one row, and nothing is
gathered. Norms of tensors with sharded columns are in _columns.py. A tensor that is sharded in
another way is gathered first.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from membound.torch._recording import inference_direction, raw_operator

if TYPE_CHECKING:
    from membound.torch._operators import Operator

# Which axis of inputs and results is sharded; the others are replicated.
Way = dict[str, int]

_operators: list[Operator] = []


def announce(op: Operator) -> None:
    """Remember an operator; torch.distributed is told of it when that is in use."""
    _operators.append(op)


def tell_dtensor() -> bool:
    """Tell DTensor of all operators, once it is there. Importing it takes a second."""
    there = "torch.distributed.tensor" in sys.modules
    if there:
        _register()
    return there


# Dynamo runs it while it traces: torch.compiler.assume_constant_result without importing Dynamo.
tell_dtensor._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for op in _operators:
        if op.rows or op.ways:
            for operator, results in _forwards(op).items():
                register_sharding(operator)(functools.partial(_of_forward, op, results))
            rule = functools.partial(_of_backward, op)
            register_sharding(raw_operator(op, "backward"))(rule)


def _forwards(op: Operator) -> dict[Any, list[str]]:
    """Its forward operators, and the results of each."""
    flowing = [name for name, flows in op.results.items() if flows]
    return {
        raw_operator(op, inference_direction(op)): flowing,
        raw_operator(op, "forward"): list(op.results),
        getattr(torch.ops.membound, op.name).default: list(op.results),
    }


def _of_forward(op: Operator, results: list[str], *arguments: Any) -> list[Any]:
    """Every way that tensors can lie: (placements of results, placements of arguments)."""
    names = [name.rstrip("?") for name in op.tensors]
    by_name = dict(zip(names, arguments, strict=False))
    whole, unplaced = _replicated(), [None] * len(op.options)
    return [
        (
            [_placed(way, result, whole) for result in results],
            [_input(by_name[n], way, n) for n in names] + unplaced,
        )
        for way in _ways(op, by_name, arguments[len(names) :])
    ]


def _of_backward(op: Operator, *arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Partial

    flowing = [name for name, flows in op.results.items() if flows]
    names = [*(f"d{name}" for name in flowing), *op.saves]
    by_name = dict(zip(names, arguments, strict=False))
    inputs = {gradient: name.rstrip("?") for name, gradient in op.tensors.items() if gradient}
    for gradient, like in op.gradients.items():  # what was not saved has the shape of what was
        by_name.setdefault(inputs[gradient], by_name[like])
    whole = _replicated()
    found = []
    for way in _ways(op, by_name, arguments[len(names) :]):
        shared = Partial() if way else whole
        results = [
            _placed(way, inputs[gradient], shared) if wanted else whole
            for gradient, wanted in zip(op.gradients, arguments[-1], strict=True)
        ]
        incoming = {f"d{name}": axis for name, axis in way.items() if name in flowing}
        read = [_input(by_name[n], way | incoming, n) for n in names]
        found.append((results, [*read, *(None for _ in op.options), None]))
    return found


def _replicated() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _placed(way: Way, name: str, otherwise: Any) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(way[name]) if name in way else otherwise


def _input(given: Any, way: Way, name: str) -> Any:
    return None if given is None else _placed(way, name, _replicated())


def _ways(op: Operator, by_name: dict[str, Any], options: tuple[Any, ...]) -> list[Way]:
    """All whole, or what the operator can do on parts: axes of rows where it does not say."""
    if op.ways is not None:
        return [{}, *op.ways(by_name, dict(zip(op.options, options, strict=False)))]
    weight = by_name.get("weight")  # those of heads keep the heads together
    axes = max(t.ndim for t in by_name.values() if t is not None)
    axes -= 2 if weight is not None and weight.ndim == 2 else 1
    return [{}, *(dict.fromkeys((*op.rows, *op.results), axis) for axis in range(axes))]
