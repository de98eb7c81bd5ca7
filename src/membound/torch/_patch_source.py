# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The source of a method as a syntax tree that can be changed."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from typing import Any

from membound.torch._patch_trial import LeftAloneError


def definition(function: Any) -> ast.FunctionDef:
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        raise LeftAloneError("its forward is wrapped in another function")
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError:
        raise LeftAloneError("its source cannot be read") from None
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise LeftAloneError("its source cannot be read")
    ast.increment_lineno(tree, first - 1)  # so that tracebacks show the class's own lines
    return tree


def compiled(function: Any, tree: ast.FunctionDef, **names: Any) -> Any:
    """The function with another body and more globals; defaults and signature stay."""
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    names |= {name: cell.cell_contents for name, cell in free.items()}
    arguments = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    for argument in (*arguments, tree.args.vararg, tree.args.kwarg):
        if argument is not None:
            argument.annotation = None
    tree.decorator_list, tree.returns = [], None
    tree.args.defaults = []
    tree.args.kw_defaults = [None for _ in tree.args.kwonlyargs]
    outer = ast.parse(f"def outer({', '.join(names)}):\n    return {tree.name}")
    outer.body[0].body.insert(0, tree)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(outer), function.__code__.co_filename, "exec")
    exec(code, function.__globals__, scope)  # noqa: S102 - the source of a class that is there
    result = scope["outer"](**names)
    result.__defaults__, result.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    result.__annotations__, result.__doc__ = function.__annotations__, function.__doc__
    result.__qualname__ = function.__qualname__
    return result
