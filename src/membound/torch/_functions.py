# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""From an operator to the function that people call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function

from membound import _core
from membound.arrays import dtype_name, makes_graph, type_name
from membound.torch._operators import PLAIN, check_tensor
from membound.torch._recording import dispatch_modes, dynamo_traces, refuse_gradients

# What membound's own functions call, by the name of the op: for tensors that want their gradient
# recorded or are no plain memory; and, of all ops, where torch makes a graph of calls.
HANDED_OVER: dict[str, Callable[..., Any]] = {}
RECORDED: set[str] = set()  # those of them that have a gradient

# With these no operator is called, and with those nothing is recorded.
_NOT_IN_GRAPHS = frozenset(
    [
        "return_rstd",
        "return_stats",
        "return_lse",
        "row_losses",
        "dlogits",
        "dloss",
        "stream",
        "device",
    ]
)
_OUTSIDE = _NOT_IN_GRAPHS | {"out", "residual_out", "k_out", "scale_out", "key_cache"}


def differentiable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the public function of one that records; `outputs` are where results may be written.

    Plain calls are the extension's, which finds out by itself what it cannot take and then calls
    the one that records.
    """

    def decorate(recorded: Callable[..., Any]) -> Callable[..., Any]:
        extension, names = getattr(_core, recorded.__name__), _names(recorded)
        op = recorded.__name__
        RECORDED.add(op)

        def other(*args: Any, **kwargs: Any) -> Any:
            if (stand_in := _stand_in(args, kwargs)) is not None:
                return handle_torch_function(call, (stand_in,), *args, **kwargs)
            _check_tensor(op, names, args, kwargs)
            if dispatch_modes():
                return _traced(recorded, names, outputs, args, kwargs)
            return extension(*args, **kwargs)

        # The extension would find out by itself, and take 7 us longer to get to `recorded`.
        eager = _core.torch_public_call(recorded, extension, other, plain=PLAIN, outside=_OUTSIDE)

        @functools.wraps(recorded)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces():
                return _traced(recorded, names, outputs, args, kwargs)
            try:
                return eager(*args, **kwargs)
            except TypeError as error:
                if str(error).startswith(f"{op}() "):  # Python's, of a call that does not fit
                    extension(*args, **kwargs)
                raise

        HANDED_OVER[op] = _handed_over(call, recorded, names, outputs)
        return call

    return decorate


def traceable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same of a function without a gradient, given what it is in a graph."""

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

        HANDED_OVER[op] = _handed_over(call, refusing, names, outputs, records=False)
        return call

    return decorate


def _refusing(traced: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    @functools.wraps(traced)
    def call(*args: Any, **kwargs: Any) -> Any:
        refuse_gradients(traced.__name__, {**dict(zip(names, args, strict=False)), **kwargs})
        return traced(*args, **kwargs)

    return call


def _stand_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first that stands for a tensor and is none, as torch.fx's proxies; None without one."""
    for value in (*args, *kwargs.values()):
        if not isinstance(value, torch.Tensor) and hasattr(value, "__torch_function__"):
            return value
    return None


def _check_tensor(op: str, names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> None:
    """The extension takes the arrays of any framework, by whose first all others are judged."""
    missing = object()
    first = args[0] if args else kwargs.get(names[0], missing)
    if first is not missing:
        check_tensor(op, names[0], first)


def _handed_over(
    public: Callable[..., Any],
    recorded: Callable[..., Any],
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    *,
    records: bool = True,
) -> Callable[..., Any]:
    """What the extension calls; NotImplemented where its own error is to be raised after all."""

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
    """A graph has results of its own: where they were to be written, it copies them."""
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
    """Where there may be tangents, of which a graph knows nothing: the extension looks for them."""
    return getattr(_core, op)(*args, **kwargs)


def _copied(op: str, name: str, out: Any, result: Any) -> Any:
    """Eager calls write the result itself: nothing is cast or broadcast there."""
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
