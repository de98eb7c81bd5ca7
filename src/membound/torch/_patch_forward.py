# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The forward of a module class: when its own runs, and with our functions as its globals."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from membound.torch._patch_trial import LeftAloneError
from membound.torch._recording import dynamo_traces, records


def left_to_compiler(*values: Any) -> bool:
    """Whether Dynamo traces a call of these tensors that records no gradient.

    Inductor fuses plain ops with the ops around them (residual additions, writes to a cache), which
    an opaque operator prevents. In a decoding step that costs more than the operator saves.
    """
    return dynamo_traces() and not records(values)


def global_of(cls: type[nn.Module], name: str) -> Any:
    """The global that the class's forward uses by that name, or None."""
    function: Any = inspect.unwrap(cls.forward)
    code = getattr(function, "__code__", None)
    return function.__globals__.get(name) if code and name in code.co_names else None


def globals_of(cls: type[nn.Module], prefix: str) -> dict[str, Callable[..., Any]]:
    """The functions with that name prefix that the class's forward calls."""
    function: Any = inspect.unwrap(cls.forward)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    found = {n: function.__globals__.get(n) for n in names if n.startswith(prefix)}
    return {name: call for name, call in found.items() if inspect.isfunction(call)}


def forward_with(cls: type[nn.Module], names: tuple[tuple[str, Any], ...]) -> Any:
    """The class's forward with other globals: a copy of the code, so no other model changes."""
    function = _with(cls.forward, dict(names))
    function.__signature__ = inspect.signature(cls.forward)  # trainers inspect the signature
    return function


def _with(function: Any, names: Mapping[str, Any]) -> Any:
    """The function with other globals, also inside decorators that close over it."""
    scope, closure = function.__globals__, function.__closure__
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        scope = {**scope, **names}
        # torch.compile looks functions up by module and name, which would find the model's own.
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
