# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What a module's forward decides by: a trial on a few inputs sees one side of a condition only."""

from __future__ import annotations

import ast
import dis
import inspect
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from membound.torch._patch_source import definition
from membound.torch._patch_trial import LeftAloneError

_PLAIN = (bool, int, float, str, tuple, torch.dtype, type(None))
_CONDITIONS = ("COMPARE_OP", "IS_OP", "CONTAINS_OP", "UNARY_NOT")
_COMBINED = (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List)
_STATES = r"\w+\.dim\(\)|len\(\w+\.shape\)|torch\.is_autocast_enabled\([^()]*\)"
_OPERATORS = (ast.boolop, ast.cmpop, ast.unaryop, ast.operator, ast.expr_context, ast.Constant)


def attributes_read(module: nn.Module) -> dict[str, Any]:
    """Values of the module that its forward reads: what a trial shows holds while they stay."""
    names = {n for function in _functions(type(module)) for n in _names(function.__code__)}
    found = {name: getattr(module, name) for name in sorted(names) if hasattr(module, name)}
    found = {n: v for n, v in found.items() if not (callable(v) or isinstance(v, torch.Tensor))}
    for name, value in found.items():
        if not isinstance(value, _PLAIN):
            raise LeftAloneError(f"its forward reads '{name}', which may change")
    return found


def has_conditions(cls: type[nn.Module], method: str) -> bool:
    return any(map(_decides, _functions(cls, method)))


def states_decided_by(cls: type[nn.Module]) -> set[str]:
    """Of dtype and autocast, which may decide what forward does; raises for what no trial shows.

    Attributes, optional arguments and the number of axes may decide too.
    """
    found = set()
    for function in filter(_decides, _functions(cls)):
        tree = definition(function)
        found |= {"dtype", "is_autocast_enabled"} & {*function.__code__.co_names}
        values = _values(tree)
        for test in _tests(tree):
            if not _is_tried(test, values):
                raise LeftAloneError(
                    f"its forward decides by '{ast.unparse(test)}', which no trial varies"
                )
    return found


def _decides(function: Any) -> bool:
    operations = {one.opname for one in dis.get_instructions(function)}
    return any(name in _CONDITIONS or "_IF_" in name for name in operations)


def _functions(cls: type[nn.Module], method: str = "forward") -> list[Any]:
    """The class's method, and what it calls of its class, the class's bases and their files."""
    bases = [base for base in cls.__mro__ if not base.__module__.startswith("torch.")]
    files = {base.__module__ for base in bases}
    found: list[Any] = [inspect.unwrap(getattr(cls, method))]
    for function in found:  # it grows
        for name in function.__code__.co_names:
            for called in (*(vars(b).get(name) for b in bases), function.__globals__.get(name)):
                called = inspect.unwrap(called) if callable(called) else None
                if isinstance(called, types.FunctionType) and called.__module__ in files:
                    found += [called] if called not in found else []
    return found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):  # as in getattr(self, "name")
            yield constant


def _values(tree: ast.FunctionDef) -> dict[str, ast.expr]:
    """Values of the variables that are assigned once."""
    nodes = list(ast.walk(tree))
    stored = Counter(
        n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
    stored.update(n.arg for n in nodes if isinstance(n, ast.arg))
    assigned = ((n.targets[0], n.value) for n in nodes if isinstance(n, ast.Assign))
    values = {to.id: value for to, value in assigned if isinstance(to, ast.Name)}
    return {name: value for name, value in values.items() if stored[name] == 1}


def _tests(node: ast.AST) -> Iterator[ast.expr]:
    """Conditions, other than of raising an error."""
    raises = isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise) and not node.orelse
    if raises or isinstance(node, ast.Assert):
        return
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test
    elif isinstance(node, ast.Match):
        yield node.subject
    elif isinstance(node, ast.comprehension):
        yield from node.ifs
    elif isinstance(node, (ast.Compare, ast.BoolOp)):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _tests(child)


def _is_tried(node: ast.AST, values: dict[str, ast.expr]) -> bool:
    """Whether a trial shows both outcomes, or the patched forward checks that it stays."""
    if isinstance(node, ast.Name):
        return node.id in values and _is_tried(values[node.id], values)
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "torch")
        return own or node.attr in ("dtype", "ndim")
    if isinstance(node, ast.Call):
        return bool(re.fullmatch(_STATES, ast.unparse(node)))
    if isinstance(node, _COMBINED):
        given = re.fullmatch(r"\w+ is (not )?None", ast.unparse(node))
        return bool(given) or all(_is_tried(child, values) for child in ast.iter_child_nodes(node))
    return isinstance(node, _OPERATORS)
