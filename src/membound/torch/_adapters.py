# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What functions with the names of other libraries share: errors in their words, and refusals."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from membound._rope_table import rope_frequencies
from membound.torch._recording import dispatch_modes, dynamo_traces

_OURS = re.compile(r"\w+(?=: argument ')")
_ARGUMENT = re.compile(r"'(\w+)'|\b(\w+)(?=\.detach\(\))")


def adapter(called: str | None = None, **theirs: str) -> Callable[[Any], Any]:
    """Decorate a function so that its errors name it, and its arguments as its origin does.

    Args:
        called: the name; None: the function's own, or that of the class which it is a method of.
        theirs: the origin's name for each argument of ours that errors may name.
    """

    def decorate(function: Any) -> Any:
        name = called or function.__qualname__.partition(".")[0]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if dynamo_traces():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except (ValueError, TypeError, RuntimeError, MemoryError) as error:
                if not _OURS.match(str(error)):
                    raise
                raise type(error)(_in_words_of(name, theirs, str(error))) from None

        return call

    return decorate


def _in_words_of(name: str, theirs: dict[str, str], text: str) -> str:
    def renamed(found: re.Match[str]) -> str:
        ours = found[1] or found[2]
        return found[0].replace(ours, theirs.get(ours, ours))

    return _ARGUMENT.sub(renamed, _OURS.sub(name, text, count=1))


def refuse(function: str, argument: str, value: Any, default: Any, instead: str) -> None:
    """Raise for an argument that can only be what it is by default, and say what to use instead."""
    if value is default or (not isinstance(value, torch.Tensor) and value == default):
        return
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
    raise ValueError(f"{function}: argument '{argument}' must be {default!r}: {instead}; got {got}")


def choose(function: str, argument: str, value: Any, values: dict[Any, Any]) -> Any:
    """What a name stands for, of those that there are."""
    if value not in values:
        known = ", ".join(map(repr, values))
        raise ValueError(f"{function}: argument '{argument}' must be one of {known}, got {value!r}")
    return values[value]


def heads_of(t: Any, positions: Any, head_size: int) -> Any:
    """A view of (tokens, heads, head_size); view() raises where only a copy could have it."""
    if t is None:
        return None
    split = t if t.dim() == positions.dim() + 2 else t.unflatten(-1, (-1, head_size))
    return split.view(positions.numel(), *split.shape[-2:]) if positions.dim() > 1 else split


def frequencies(device: Any, rotary_dim: int, **rope_parameters: Any) -> Any:
    """Inverse frequencies on a device; the same ones are there already from the second call on."""
    if dynamo_traces() or dispatch_modes():
        return _made(device, rotary_dim, rope_parameters)
    return _kept(device, rotary_dim, tuple(sorted(rope_parameters.items())))


def _made(device: Any, rotary_dim: int, rope_parameters: dict[str, Any]) -> Any:
    values, _ = rope_frequencies(rope_parameters, rotary_dim, 0)
    return torch.as_tensor(values, dtype=torch.float32).to(device)


@functools.lru_cache(maxsize=64)
def _kept(device: Any, rotary_dim: int, parameters: tuple[tuple[str, Any], ...]) -> Any:
    with torch.inference_mode(mode=False):  # or autograd could not use them later
        return _made(device, rotary_dim, dict(parameters))
