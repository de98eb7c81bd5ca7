# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the public function of an operator."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function

from membound import _core
from membound.arrays import dtype_name, makes_graph, type_name
from membound.torch._operators import PLAIN, check_tensor
from membound.torch._recording import (
    dispatch_modes,
    dynamo_traces,
    jit_traces,
    refuse_gradients,
)

# The dispatch table: the function that the extension calls for an op if a gradient is required,
# if a tensor has no plain memory, or if torch traces a graph.
DISPATCH: dict[str, Callable[..., Any]] = {}
RECORDED: set[str] = set()  # ops in the table that have a gradient
# The extension goes by the first array, which is then the one that is no tensor.
_LIKE_ANOTHER = re.compile(r".* must be a (?!torch )\w+ array like '(\w+)'")

# Calls with _NOT_IN_GRAPHS arguments never use an operator; those with _OUTSIDE record nothing.
_NOT_IN_GRAPHS = frozenset((
    "return_rstd", "return_stats", "return_lse", "row_losses", "entropy", "dlogits", "dloss",
    "stream", "device",
))  # fmt: skip
_OUTSIDE = _NOT_IN_GRAPHS | {"out", "residual_out", "k_out", "scale_out", "key_cache"}


def differentiable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a recording function as a public one; `outputs` are its optional output arguments.

    Plain calls go to the extension, which calls the recording function if one has to be recorded.
    """

    def decorate(recorded: Callable[..., Any]) -> Callable[..., Any]:
        extension, names = getattr(_core, recorded.__name__), _names(recorded)
        op = recorded.__name__
        RECORDED.add(op)

        _core.record_torch_calls(op, recorded, plain=PLAIN, outside=_OUTSIDE)

        @functools.wraps(recorded)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces():
                return _traced(recorded, names, outputs, args, kwargs)
            if not (args and type(args[0]) in PLAIN) or dispatch_modes():
                if (stand_in := _stand_in(args, kwargs)) is not None:
                    return handle_torch_function(call, (stand_in,), *args, **kwargs)
                _check_tensor(op, names, args, kwargs)
                if dispatch_modes():
                    return _traced(recorded, names, outputs, args, kwargs)
            try:
                return extension(*args, **kwargs)
            except TypeError as error:
                if found := _LIKE_ANOTHER.match(str(error)):
                    given = dict(zip(names, args, strict=False)) | kwargs
                    check_tensor(op, found[1], given[found[1]])
                raise

        DISPATCH[op] = _dispatched(call, recorded, names, outputs)
        return call

    return decorate


def traceable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same for an op without a gradient; the decorated function is its form in a graph."""

    def decorate(traced: Callable[..., Any]) -> Callable[..., Any]:
        op = traced.__name__
        extension, names = getattr(_core, op), _names(traced)
        refusing = _refusing(traced, names)

        @functools.wraps(traced)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces() or dispatch_modes():
                return _traced(refusing, names, outputs, args, kwargs)
            if _stand_in(args, kwargs) is None:
                _check_tensor(op, names, args, kwargs)
            return extension(*args, **kwargs)

        DISPATCH[op] = _dispatched(call, refusing, names, outputs, records=False)
        return call

    return decorate


def one_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of several ops: torch.fx.symbolic_trace records a call of it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not dynamo_traces() and (stand_in := _stand_in(args, kwargs)) is not None:
            return handle_torch_function(call, (stand_in,), *args, **kwargs)
        return function(*args, **kwargs)

    return call


def is_plain_call(tensors: tuple[Any, ...]) -> bool:
    """Whether only autograd can record the call, which is then of plain tensors."""
    return (
        not dynamo_traces()
        and all(t is None or type(t) in PLAIN for t in tensors)
        and not dispatch_modes()
        and not jit_traces()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _refusing(traced: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(traced)
    def call(*args: Any, **kwargs: Any) -> Any:
        refuse_gradients(traced.__name__, {**dict(zip(names, args, strict=False)), **kwargs})
        return traced(*args, **kwargs)

    return call


def _stand_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first argument that stands in for a tensor, such as a torch.fx proxy, or None."""
    for value in (*args, *kwargs.values()):
        if not isinstance(value, torch.Tensor) and hasattr(value, "__torch_function__"):
            return value
    return None


def _check_tensor(op: str, names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> None:
    """Require a tensor first: the extension takes any framework's arrays and goes by the first."""
    missing = object()
    first = args[0] if args else kwargs.get(names[0], missing)
    if first is not missing:
        check_tensor(op, names[0], first)


def _dispatched(
    public: Callable[..., Any],
    recorded: Callable[..., Any],
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    *,
    records: bool = True,
) -> Callable[..., Any]:
    """The entry of the dispatch table; it returns NotImplemented for the extension to raise."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if (stand_in := _stand_in(args, kwargs)) is not None:
            return handle_torch_function(public, (stand_in,), *args, **kwargs)
        in_graph = makes_graph()
        if not records and not in_graph:
            return NotImplemented
        for name in (_NOT_IN_GRAPHS if in_graph else _OUTSIDE) & kwargs.keys():
            value = kwargs.pop(name)
            if value is not None and value is not False:
                return NotImplemented
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if not all(t.layout is torch.strided for t in tensors):
            return NotImplemented
        if in_graph:
            return _traced(recorded, names, outputs, args, kwargs)
        return recorded(*args, **kwargs)

    return call


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _traced(
    recorded: Any, names: tuple[str, ...], outputs: tuple[str, ...], args: Any,
    kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Call the operator; its results are new tensors, which are copied into given outputs."""
    if dynamo_traces() and forward_ad._current_level >= 0:
        return _eager(recorded.__name__, *args, **kwargs)
    given = {name: kwargs.pop(name, None) for name in outputs}
    first = given.get("out")
    takes_dtype = "dtype" in names and kwargs.get("dtype") is None
    has_codes = recorded.__name__.endswith("_quant")
    if first is not None and takes_dtype and (has_codes or first.is_floating_point()):
        kwargs["dtype"] = first.dtype
    results = recorded(*args, **kwargs)
    if all(out is None for out in given.values()):
        return results
    made = results if isinstance(results, tuple) else (results,)
    for name in outputs[len(made) :]:
        if given[name] is not None:
            raise ValueError(
                f"{recorded.__name__}: argument '{name}' must be None, as this call has no such "
                f"result; got {type_name(given[name])}"
            )
    written = tuple(
        result if out is None else _copied(recorded.__name__, name, out, result)
        for (name, out), result in zip(given.items(), made, strict=False)
    )
    return written if isinstance(results, tuple) else written[0]


@torch._disable_dynamo  # torch.compiler.disable without the import of Dynamo
def _eager(op: str, *args: Any, **kwargs: Any) -> Any:
    """Run eagerly under forward mode: a graph ignores tangents, the extension refuses them."""
    return getattr(_core, op)(*args, **kwargs)


def _copied(op: str, name: str, out: Any, result: Any) -> Any:
    """Copy a result to out without casts or broadcasts, which eager calls do not do either."""
    if out.shape != result.shape:
        raise ValueError(
            f"{op}: argument '{name}' must have shape {tuple(result.shape)}, got {tuple(out.shape)}"
        )
    if out.dtype != result.dtype:
        raise TypeError(
            f"{op}: argument '{name}' must be {dtype_name(result.dtype)}, got "
            f"{dtype_name(out.dtype)}"
        )
    return out.copy_(result)
