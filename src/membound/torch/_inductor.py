# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Lets the Python code that Inductor generates call our operators as builtins, past the dispatcher.

Eager calls that record a gradient use the same builtins, after their tensors have been checked.

torch.ops.membound.builtins has one for each operator with a kernel in C++. It takes the same
arguments, returns the same results, and falls back to the operator for tensors without plain memory
and for calls that a mode or the profiler must see. For an operator without a C++ kernel the name
refers to the operator itself, so that code from Inductor's caches, written by another process,
finds every name.

The lowering of our operators is unchanged except for the name that the generated code calls. torch
has no public interface for this: if its internals are not as expected, the operators are called as
before. Generated C++ (cpp_wrapper, AOTInductor) always calls the operators.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from membound import _core

_LOWERING = "torch._inductor.lowering"
_BUILTINS = SimpleNamespace()
torch.ops.membound.builtins = _BUILTINS

_pending_lowerings: set[str] = set()  # operators with a builtin, not yet lowered to it


def register_builtin(name: str, kernel: str | None) -> None:
    """Make a builtin of the operator's C++ kernel, if it has one."""
    operator = getattr(torch.ops.membound, name).default
    # In graphs in-place ops are op_inference; op itself must tell autograd what it has written.
    immutable = not operator._schema.is_mutable or name.endswith("_inference")
    has_builtin = kernel is not None and immutable
    builtin = _core.torch_builtin(kernel, operator) if has_builtin else None
    setattr(_BUILTINS, name, builtin or operator)
    if builtin is not None:
        _pending_lowerings.add(name)


def builtin_of(name: str) -> Callable[..., Any] | None:
    """The operator's builtin, or None."""
    found = getattr(_BUILTINS, name)
    return None if isinstance(found, torch._ops.OpOverload) else found


def register_lowering(name: str) -> None:
    """Lower an operator to its builtin when it is first traced after Inductor was loaded."""
    lowering = sys.modules.get(_LOWERING)
    if lowering is None or name not in _pending_lowerings:
        return
    try:
        _lower_to_builtin(name, lowering)
    except Exception:  # noqa: BLE001 - a torch with other internals keeps its own lowering
        return
    _pending_lowerings.discard(name)


def _lower_to_builtin(name: str, lowering: Any) -> None:
    from torch._inductor.virtualized import V
    from torch._library.utils import get_layout_constraint_tag

    operator = getattr(torch.ops.membound, name).default
    if operator not in lowering.lowerings:  # as GraphLowering.call_function does
        tag = get_layout_constraint_tag(operator, with_default=True)
        constraint = lowering.tag_to_layout_constraint(tag)
        lowering.make_fallback(operator, layout_constraint=constraint, warn=False)
    lowered = lowering.lowerings[operator]

    @functools.wraps(lowered)
    def lower(*args: Any, **kwargs: Any) -> Any:
        graph = V.graph
        operations = getattr(graph, "operations", ())
        before = len(operations)
        found = lowered(*args, **kwargs)
        if not getattr(graph, "cpp_wrapper", True) and not getattr(graph, "fx_wrapper", False):
            _rename(operations[before:], operator, name)
        return found

    lowering.lowerings[operator] = lower


def _rename(operations: list[Any], operator: Any, name: str) -> None:
    for made in operations:
        written = getattr(made, "python_kernel_name", None)
        if getattr(made, "op_overload", None) is operator and written == f"torch.ops.{operator}":
            made.python_kernel_name = f"torch.ops.membound.builtins.{name}"
