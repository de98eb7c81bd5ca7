# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""From an operator to the function that people call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from membound import _core
from membound.torch._operators import PLAIN, dispatch_modes, dynamo_traces
from membound.torch._recording import refuse_gradients

# What membound's own functions call for tensors that want their gradient recorded or are no plain
# memory, by the name of the op.
RECORDED: dict[str, Callable[..., Any]] = {}

# With these nothing is recorded.
_OUTSIDE = frozenset(
    {
        "out",
        "residual_out",
        "k_out",
        "return_rstd",
        "return_stats",
        "return_lse",
        "dlogits",
        "dloss",
        "key_cache",
    }
    | {"stream", "device"}
)
_records = torch.is_grad_enabled


def differentiable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the public function of one that records; `outputs` are where results may be written.

    Plain calls are the extension's, which finds out by itself what it cannot take and then calls
    the one that records.
    """

    def decorate(recorded: Callable[..., Any]) -> Callable[..., Any]:
        extension = getattr(_core, recorded.__name__)
        RECORDED[recorded.__name__] = _handed_over(recorded)

        @functools.wraps(recorded)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces() or dispatch_modes():
                return _traced(recorded, outputs, args, kwargs)
            # The extension would find out by itself, and take 7 us longer to get back here.
            if _records() and _wants_gradient(args) and _OUTSIDE.isdisjoint(kwargs):
                return recorded(*args, **kwargs)
            return extension(*args, **kwargs)

        return call

    return decorate


def traceable(*outputs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same of a function without a gradient, given what it is in a graph."""

    def decorate(traced: Callable[..., Any]) -> Callable[..., Any]:
        op = traced.__name__
        extension, names = getattr(_core, op), tuple(inspect.signature(traced).parameters)

        @functools.wraps(traced)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces() or dispatch_modes():
                refuse_gradients(op, {**dict(zip(names, args, strict=False)), **kwargs})
                return _traced(traced, outputs, args, kwargs)
            return extension(*args, **kwargs)

        return call

    return decorate


def _wants_gradient(tensors: tuple[Any, ...]) -> bool:
    for tensor in tensors:  # noqa: SIM110 - any() of a generator takes three times as long
        if type(tensor) in PLAIN and tensor.requires_grad:
            return True
    return False


def _handed_over(recorded: Callable[..., Any]) -> Callable[..., Any]:
    """What the extension calls; NotImplemented where its own error is to be raised after all."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for name in _OUTSIDE & kwargs.keys():
            value = kwargs.pop(name)
            if value is not None and value is not False:
                return NotImplemented
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if not all(t.layout is torch.strided for t in tensors):
            return NotImplemented
        return recorded(*args, **kwargs)

    return call


def _traced(recorded: Any, outputs: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> Any:
    """A graph has results of its own: where they were to be written, it copies them."""
    given = [kwargs.pop(name, None) for name in outputs]
    results = recorded(*args, **kwargs)
    if all(out is None for out in given):
        return results
    if isinstance(results, torch.Tensor):
        for name, out in zip(outputs[1:], given[1:], strict=True):
            if out is not None:
                raise ValueError(
                    f"{recorded.__name__}: argument '{name}' must be None: this call has one result"
                )
        return given[0].copy_(results)
    return tuple(
        result if out is None else out.copy_(result)
        for out, result in zip(given, results, strict=True)
    )
