# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""How the Python code that Inductor writes calls our operators: as builtins, past the dispatcher.

So do eager calls that record a gradient, whose tensors have been looked at by then.

torch.ops.membound.builtins holds one for each operator with a kernel in C++. It takes the same
arguments and returns the same results, and calls the operator for what it cannot do itself: tensors
that are no plain memory, calls that a mode or the profiler is to see. For an operator without such
a kernel the name stands for the operator: code out of Inductor's caches, which another process has
written, finds every name.

Inductor lowers our operators as it would without this, but for the name of what the code calls.
That is done by no public interface of torch: where it is not as expected, the operators are called
as before. Code in C++ (cpp_wrapper, AOTInductor) calls them in any case.
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

_to_be_told: set[str] = set()  # operators with a builtin that Inductor does not know yet


def offer(name: str, kernel: str | None) -> None:
    """Make the operator's builtin of a kernel, if it has one."""
    operator = getattr(torch.ops.membound, name).default
    # op_inference is what in-place ops are in graphs; op itself tells autograd what it has written.
    told = kernel is not None and (not operator._schema.is_mutable or name.endswith("_inference"))
    builtin = _core.torch_builtin(kernel, operator) if told else None
    setattr(_BUILTINS, name, builtin or operator)
    if builtin is not None:
        _to_be_told.add(name)


def builtin_of(name: str) -> Callable[..., Any] | None:
    """The operator's builtin, where it has one."""
    found = getattr(_BUILTINS, name)
    return None if isinstance(found, torch._ops.OpOverload) else found


def tell_inductor(name: str) -> None:
    """Of an operator that is being traced: what Inductor lowers has been, after it was loaded."""
    lowering = sys.modules.get(_LOWERING)
    if lowering is None or name not in _to_be_told:
        return
    try:
        _lower_to_builtin(name, lowering)
    except Exception:  # noqa: BLE001 - a torch that differs, in whatever way, keeps its own ways
        return
    _to_be_told.discard(name)


def _lower_to_builtin(name: str, lowering: Any) -> None:
    from torch._inductor.virtualized import V
    from torch._library.utils import get_layout_constraint_tag

    operator = getattr(torch.ops.membound, name).default
    if operator not in lowering.lowerings:  # as GraphLowering.call_function makes them by itself
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
