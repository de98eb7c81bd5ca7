# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rewrites the source of a gated MLP: activation, product and last projection as one call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

Resolves = Callable[[ast.expr], bool]  # whether an expression is the activation
CALL = "membound_gated"  # (projection or None, activation, gate, up or None, limit or None)


def with_gating(method: ast.FunctionDef, is_activation: Resolves) -> ast.FunctionDef | None:
    """The method with one ``act(gate) * up`` replaced; None unless it has exactly one.

    Everything else of the method stays: dropout, other norms, factors, reshapes.
    """
    method = copy.deepcopy(method)
    method.body = _inlined(method.body)
    found = [node for node in _expressions(method) if _parts(node, is_activation)]
    if len(found) != 1:
        return None
    act, gate, up = _parts(found[0], is_activation)  # type: ignore[misc]
    if (packed := _unpacked(method.body, gate, up)) is not None:
        gate, up = packed, ast.Constant(None)
    limit: ast.expr = ast.Constant(None)
    if (limited := _limits(gate, up)) is not None:
        gate, up, limit = limited
    holder, projection = found[0], ast.Constant(None)
    for node in _expressions(method):
        if isinstance(node, ast.Call) and node.args == [holder] and not node.keywords:
            if isinstance(node.func, ast.Attribute) and _is_self(node.func.value):
                holder, projection = node, node.func
            break
    call = ast.Call(ast.Name(CALL, ast.Load()), [projection, act, gate, up, limit], [])
    _Exchange(holder, ast.copy_location(call, holder)).visit(method)
    return method


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _parts(node: ast.expr, is_activation: Resolves) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Activation, gate and up of a product."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(one, ast.Call) or len(one.args) != 1 or one.keywords:
            continue
        if not isinstance(one.args[0], ast.Starred) and is_activation(one.func):
            return one.func, one.args[0], other
    return None


def _uses(tree: ast.AST, name: str) -> list[ast.Name]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return [node for node in names if isinstance(node.ctx, ast.Load)]


def _inlined(body: list[ast.stmt]) -> list[ast.stmt]:
    """Inline variables that are used once, in the next statement."""
    body = list(body)
    for at in range(len(body) - 2, -1, -1):
        first, second, rest = body[at], body[at + 1], body[at + 2 :]
        if not (isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name)):
            continue
        if len(first.targets) > 1 or not isinstance(second, (ast.Assign, ast.Return)):
            continue
        name = first.targets[0].id
        stored = isinstance(second, ast.Assign) and any(
            isinstance(node, ast.Name) and node.id == name
            for target in second.targets
            for node in ast.walk(target)
        )
        uses = _uses(second, name)
        if len(uses) == 1 and (stored or not any(_uses(later, name) for later in rest)):
            body[at + 1] = _Exchange(uses[0], first.value).visit(second)
            del body[at]
    return body


def _unpacked(body: list[ast.stmt], gate: ast.expr, up: ast.expr) -> ast.expr | None:
    """The tensor that the second to last statement splits into gate and up."""
    if len(body) < 2 or not isinstance(body[-2], ast.Assign):
        return None
    target, value = body[-2].targets[0], body[-2].value
    names = ast.Tuple([gate, up], ast.Load())
    halves = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    if not halves or value.func.attr != "chunk":  # type: ignore[attr-defined]
        return None
    given = ast.unparse(ast.Call(ast.Name("chunk"), value.args, value.keywords))  # type: ignore[attr-defined]
    if given not in ("chunk(2, dim=-1)", "chunk(2, -1)"):
        return None
    if not isinstance(target, ast.Tuple) or ast.unparse(target) != ast.unparse(names):
        return None
    if any(len(_uses(body[-1], name.id)) != 1 for name in target.elts):  # type: ignore[attr-defined]
        return None
    del body[-2]
    return value.func.value  # type: ignore[attr-defined]


def _limits(gate: ast.expr, up: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Gate, up and L, where it is gate.clamp(max=L) and up.clamp(min=-L, max=L)."""
    calls = []
    for one in (gate, up):
        if not isinstance(one, ast.Call) or one.args or not isinstance(one.func, ast.Attribute):
            return None
        calls.append((one.func, {word.arg: ast.unparse(word.value) for word in one.keywords}))
    (of_gate, above), (of_up, both) = calls
    if of_gate.attr != "clamp" or of_up.attr != "clamp":
        return None
    limit = both.get("max")
    if above not in ({"max": limit}, {"min": "None", "max": limit}):
        return None
    if both != {"min": f"-{limit}", "max": limit}:
        return None
    value = next(word.value for word in up.keywords if word.arg == "max")  # type: ignore[attr-defined]
    return of_gate.value, of_up.value, value
