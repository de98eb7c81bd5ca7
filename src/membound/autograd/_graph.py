# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded operations and the walk back through them: without recursion, freed as it goes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from membound._core import NDArray

# A node and which of its results.
Edge = tuple["Node", int]
# Takes which inputs need a gradient, and the gradient of each result, None where none came; returns
# the gradient of each input, as a new array or a view of what it took, or None.
Backward = Callable[..., Sequence[NDArray | None]]

_recording: ContextVar[bool] = ContextVar("recording", default=True)
_numbers = itertools.count()
_of_leaves = threading.Lock()  # several threads may walk to one leaf


def is_recording() -> bool:
    """Whether operations are recorded in this thread or task."""
    return _recording.get()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside ``with no_grad():``, or in a function decorated with ``@no_grad()``.

    Holds for the thread, or asynchronous task, that enters it.

    >>> x = ag.Tensor(2.0, requires_grad=True)
    >>> with ag.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """
    token = _recording.set(False)
    try:
        yield
    finally:
        _recording.reset(token)


class Node:
    """A recorded operation, or a leaf: the place where the gradient of a tensor ends up."""

    __slots__ = ("backward", "edges", "leaf", "name", "number", "results")

    def __init__(
        self,
        name: str,
        edges: Sequence[Edge | None] = (),
        backward: Backward | None = None,
        results: int = 1,
        leaf: Callable[[], Any] | None = None,  # a weak reference to its tensor
    ) -> None:
        self.name, self.edges, self.backward = name, edges, backward
        self.results, self.leaf = results, leaf
        self.number = next(_numbers)  # above those of all nodes that its edges lead to


class _Sum:
    """What has come of a gradient; is_own: it is C-contiguous, in memory of nobody else."""

    __slots__ = ("array", "is_own")

    def __init__(self, array: NDArray, is_own: bool) -> None:
        self.array, self.is_own = array, is_own

    def add(self, array: NDArray) -> None:
        if self.is_own:
            self.array += array
        else:
            self.array, self.is_own = self.array + array, True

    def own(self) -> NDArray:
        return self.array if self.is_own else self.array.copy()


class Walk:
    """Gradients on their way from roots to leaves, or to wanted results alone."""

    def __init__(
        self, function: str, roots: Sequence[tuple[Edge, NDArray]], wanted: Collection[Edge] | None
    ) -> None:
        self.order = _reachable(function, [edge[0] for edge, _ in roots])
        self.needed = None if wanted is None else _leading_to(self.order, wanted)
        self.wanted = frozenset(wanted or ())
        self.pending: dict[Node, dict[int, _Sum]] = {}
        self.found: dict[Edge, NDArray] = {}
        for edge, gradient in roots:
            self._arrive(edge, gradient, False)

    def run(self) -> dict[Edge, NDArray]:
        """Go through all nodes, the latest first; return the gradients of wanted results."""
        while self.order:
            node = self.order.pop()
            if node in self.pending:
                self._step(node, self.pending.pop(node))
        return self.found

    def _is_needed(self, node: Node) -> bool:
        return self.needed is None or node in self.needed

    def _arrive(self, edge: Edge, gradient: NDArray, is_own: bool) -> None:
        node, result = edge
        if not self._is_needed(node):
            return
        sums = self.pending.setdefault(node, {})
        if result in sums:
            sums[result].add(gradient)
        else:
            sums[result] = _Sum(gradient, is_own)

    def _step(self, node: Node, sums: dict[int, _Sum]) -> None:
        for at, total in sums.items():
            if (node, at) in self.wanted:
                self.found[node, at] = total.own()
        if node.leaf is not None:
            tensor = node.leaf()
            if self.needed is None and tensor is not None:
                gradient = sums[0].own()
                with _of_leaves:
                    tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
            return
        given = [sums[at].array if at in sums else None for at in range(node.results)]
        edges, backward = node.edges, node.backward
        node.edges, node.backward = (), None  # with it go the arrays that it had saved
        needs = [edge is not None and self._is_needed(edge[0]) for edge in edges]
        passed = backward(needs, *given)  # type: ignore[misc]
        arrays = [one for one in (*given, *passed) if one is not None]
        for edge, gradient in zip(edges, passed, strict=True):
            if edge is not None and gradient is not None:
                is_shared = sum(one.shares_buffer(gradient) for one in arrays) > 1
                self._arrive(edge, gradient, gradient.is_contiguous and not is_shared)


def _reachable(function: str, roots: Sequence[Node]) -> list[Node]:
    """Return all nodes that roots lead to, the earliest first."""
    seen: set[Node] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        if node.backward is None and node.leaf is None:
            raise RuntimeError(
                f"{function}: the graph was freed from '{node.name}' on by an earlier backward or "
                "grad; compute the result again to differentiate it again"
            )
        seen.add(node)
        waiting += [edge[0] for edge in node.edges if edge is not None]
    return sorted(seen, key=lambda node: node.number)


def _leading_to(order: Sequence[Node], wanted: Collection[Edge]) -> set[Node]:
    """Return the nodes, of some that are ordered, from which edges lead to wanted ones."""
    needed = {node for node, _ in wanted}
    for node in order:
        if any(edge is not None and edge[0] in needed for edge in node.edges):
            needed.add(node)
    return needed
