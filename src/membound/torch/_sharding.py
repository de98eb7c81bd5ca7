# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Sharding strategies of the operators on DTensors: row-sharded tensors are processed per rank.

Gradients of replicated parameters (weights, biases, tables) are then partial sums (Partial) until
they are redistributed, with one all-reduce of one row; nothing is gathered. Norms of tensors with
sharded columns are in _columns.py. Tensors with any other sharding are gathered first.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from membound.torch._recording import inference_direction, raw_operator

if TYPE_CHECKING:
    from membound.torch._operators import Operator

# The sharded axis of inputs and results by name; those without one are replicated.
Strategy = dict[str, int]

_operators: list[Operator] = []


def add_operator(op: Operator) -> None:
    """Remember an operator, to register it with torch.distributed once that is in use."""
    _operators.append(op)


def register_with_dtensor() -> bool:
    """Register all operators with DTensor if it is loaded; importing it takes a second."""
    there = "torch.distributed.tensor" in sys.modules
    if there:
        _register()
    return there


# Dynamo runs it at trace time: torch.compiler.assume_constant_result without importing Dynamo.
register_with_dtensor._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for op in _operators:
        if op.rows or op.strategies:
            for operator, results in _forwards(op).items():
                register_sharding(operator)(functools.partial(_forward_strategies, op, results))
            rule = functools.partial(_backward_strategies, op)
            register_sharding(raw_operator(op, "backward"))(rule)


def _forwards(op: Operator) -> dict[Any, list[str]]:
    """The op's forward operators, and the results of each."""
    flowing = [name for name, flows in op.results.items() if flows]
    return {
        raw_operator(op, inference_direction(op)): flowing,
        raw_operator(op, "forward"): list(op.results),
        getattr(torch.ops.membound, op.name).default: list(op.results),
    }


def _forward_strategies(op: Operator, results: list[str], *arguments: Any) -> list[Any]:
    """Every supported sharding: (placements of results, placements of arguments)."""
    names = [name.rstrip("?") for name in op.tensors]
    by_name = dict(zip(names, arguments, strict=False))
    whole, no_placements = _replicated(), [None] * len(op.options)
    return [
        (
            [_placement(strategy, result, whole) for result in results],
            [_input_placement(by_name[n], strategy, n) for n in names] + no_placements,
        )
        for strategy in _strategies(op, by_name, arguments[len(names) :])
    ]


def _backward_strategies(op: Operator, *arguments: Any) -> list[Any]:
    from torch.distributed.tensor import Partial

    flowing = [name for name, flows in op.results.items() if flows]
    names = [*(f"d{name}" for name in flowing), *op.saves]
    by_name = dict(zip(names, arguments, strict=False))
    inputs = {gradient: name.rstrip("?") for name, gradient in op.tensors.items() if gradient}
    # An input that is not saved has the shape of one that is.
    for gradient, like in op.gradients.items():
        by_name.setdefault(inputs[gradient], by_name[like])
    whole = _replicated()
    found = []
    for strategy in _strategies(op, by_name, arguments[len(names) :]):
        shared = Partial() if strategy else whole
        results = [
            _placement(strategy, inputs[gradient], shared) if wanted else whole
            for gradient, wanted in zip(op.gradients, arguments[-1], strict=True)
        ]
        incoming = {f"d{name}": axis for name, axis in strategy.items() if name in flowing}
        read = [_input_placement(by_name[n], strategy | incoming, n) for n in names]
        found.append((results, [*read, *(None for _ in op.options), None]))
    return found


def _replicated() -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate()


def _placement(strategy: Strategy, name: str, otherwise: Any) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(strategy[name]) if name in strategy else otherwise


def _input_placement(given: Any, strategy: Strategy, name: str) -> Any:
    return None if given is None else _placement(strategy, name, _replicated())


def _strategies(op: Operator, by_name: dict[str, Any], options: tuple[Any, ...]) -> list[Strategy]:
    """Full replication, then the op's own strategies; by default any axis of rows."""
    if op.strategies is not None:
        return [{}, *op.strategies(by_name, dict(zip(op.options, options, strict=False)))]
    weight = by_name.get("weight")  # weights of several heads keep the heads together
    axes = max(t.ndim for t in by_name.values() if t is not None)
    axes -= 2 if weight is not None and weight.ndim == 2 else 1
    return [{}, *(dict.fromkeys((*op.rows, *op.results), axis) for axis in range(axes))]
