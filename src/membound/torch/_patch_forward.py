# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The forward of a class of modules, with functions of ours under some of its global names."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from membound.torch._patch_trial import LeftAloneError


def global_of(cls: type[nn.Module], name: str) -> Any:
    """What the class's forward calls by that name; None if it names nothing so."""
    function: Any = inspect.unwrap(cls.forward)
    code = getattr(function, "__code__", None)
    return function.__globals__.get(name) if code and name in code.co_names else None


def globals_of(cls: type[nn.Module], prefix: str) -> dict[str, Callable[..., Any]]:
    """The functions whose names begin so that the class's forward calls."""
    function: Any = inspect.unwrap(cls.forward)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    found = {n: function.__globals__.get(n) for n in names if n.startswith(prefix)}
    return {name: call for name, call in found.items() if inspect.isfunction(call)}


def forward_with(cls: type[nn.Module], names: tuple[tuple[str, Any], ...]) -> Any:
    """The class's forward over other globals: the same code, so that no other model changes."""
    function = _with(cls.forward, dict(names))
    function.__signature__ = inspect.signature(cls.forward)  # trainers ask for it
    return function


def _with(function: Any, names: Mapping[str, Any]) -> Any:
    """The function over other globals, through decorators that hold it in a closure."""
    scope, closure = function.__globals__, function.__closure__
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        scope = {**scope, **names}
        # By it torch.compile would look ours up in the module, where the model's own function is.
        scope.pop("__name__", None)
    else:
        inner = _with(wrapped, names)
        held = [cell.cell_contents is wrapped for cell in closure or ()]
        if not any(held):
            raise LeftAloneError("its forward is wrapped in another function")
        cells = zip(closure, held, strict=True)
        closure = tuple(types.CellType(inner) if is_it else cell for cell, is_it in cells)
    copied: Any = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, closure
    )
    copied.__kwdefaults__, copied.__module__ = function.__kwdefaults__, function.__module__
    return copied
