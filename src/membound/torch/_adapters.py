# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What functions named as in other libraries share: their names in errors, and refusals."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from membound._rope_table import rope_frequencies
from membound.torch._operators import check_tensor
from membound.torch._recording import dispatch_modes, dynamo_traces

_OURS = re.compile(r"\w+(?=: argument ')")
_ARGUMENT = re.compile(r"'(\w+)'|\b(\w+)(?=\.detach\(\))")


def adapter(called: str | None = None, **theirs: str) -> Callable[[Any], Any]:
    """Decorate a function so that its errors name it, and its arguments as its origin does.

    Args:
        called: the name in errors; None: the function's own, or its class's for a method.
        theirs: the original library's name for each of our arguments that errors may mention.
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
                raise type(error)(_renamed_error(name, theirs, str(error))) from None
            except AttributeError as error:  # of an array of another framework
                for argument, value in inspect.getcallargs(function, *args, **kwargs).items():
                    if value is error.obj and not isinstance(value, torch.nn.Module):
                        check_tensor(name, argument, value)
                raise

        return call

    return decorate


def _renamed_error(name: str, theirs: dict[str, str], text: str) -> str:
    def renamed(found: re.Match[str]) -> str:
        ours = found[1] or found[2]
        return found[0].replace(ours, theirs.get(ours, ours))

    return _ARGUMENT.sub(renamed, _OURS.sub(name, text, count=1))


def layer(
    choices: dict[str, dict[Any, Any]] | None = None, *, keywords: bool = False, **theirs: str
) -> Callable[[Any], Any]:
    """Decorate a function to be a module: keyword-only arguments are those of its constructor.

    Args:
        choices: the values that an argument of the constructor may have.
        keywords: the constructor's arguments are keyword-only too.
        theirs: as of :func:`adapter`.
    """

    def decorate(function: Any) -> Any:
        name = function.__name__
        mine = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        of_call, of_init = [mine], [mine]
        for one in inspect.signature(function).parameters.values():
            stored = one.kind is one.KEYWORD_ONLY
            kind = one.KEYWORD_ONLY if stored and keywords else one.POSITIONAL_OR_KEYWORD
            (of_init if stored else of_call).append(one.replace(kind=kind))
        constructor = inspect.Signature(of_init)
        options = [one.name for one in of_init[1:]]

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it is one
            torch.nn.Module.__init__(self)
            given = constructor.bind(self, *args, **kwargs)
            given.apply_defaults()
            for option in options:
                if option in (choices or {}):
                    choose(name, option, given.arguments[option], choices[option])
                setattr(self, option, given.arguments[option])

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(
                *args, **kwargs, **{option: getattr(self, option) for option in options}
            )

        __init__.__signature__ = constructor  # type: ignore[attr-defined]
        forward.__signature__ = inspect.Signature(of_call)  # type: ignore[attr-defined]
        body = {
            "__init__": __init__, "forward": adapter(name, **theirs)(forward),
            "__doc__": function.__doc__, "__module__": function.__module__,
        }  # fmt: skip
        return type(name, (torch.nn.Module,), body)

    return decorate


def own_names(module: dict[str, Any]) -> Iterator[str]:
    """What a star imports: the functions and classes that a module defines itself."""
    for name, value in module.items():
        if name[0] != "_" and getattr(value, "__module__", None) == module["__name__"]:
            yield name


def refuse(function: str, argument: str, value: Any, default: Any, instead: str) -> None:
    """Raise if an argument that only supports its default has another value; suggest a way out."""
    if value is default or (not isinstance(value, torch.Tensor) and value == default):
        return
    got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
    raise ValueError(f"{function}: argument '{argument}' must be {default!r}: {instead}; got {got}")


def choose(function: str, argument: str, value: Any, values: dict[Any, Any]) -> Any:
    """Look a name up; raise with all valid names if it is unknown."""
    if value not in values:
        known = ", ".join(map(repr, values))
        raise ValueError(f"{function}: argument '{argument}' must be one of {known}, got {value!r}")
    return values[value]


def heads_of(t: Any, positions: Any, head_size: int) -> Any:
    """A view of (tokens, heads, head_size); view() raises where a copy would be needed."""
    if t is None:
        return None
    split = t if t.dim() == positions.dim() + 2 else t.unflatten(-1, (-1, head_size))
    return split.view(positions.numel(), *split.shape[-2:]) if positions.dim() > 1 else split


def angle_rows(function: str, name: str, table: Any) -> Any:
    """The rows of ``(positions, 1, 1, rotary_dim)``."""
    if table.dim() != 4 or table.shape[1:3] != (1, 1):
        raise ValueError(
            f"{function}: argument '{name}' must have shape (positions, 1, 1, rotary_dim), "
            f"got {tuple(table.shape)}"
        )
    return table[:, 0, 0]


def cos_and_sin(angles: Any, t: Any) -> tuple[Any, Any]:
    """Widen 16-bit angles first: they would give 16-bit sines."""
    if angles.dtype != torch.float64:
        angles = angles.double() if t.dtype == torch.float64 else angles.float()
    return angles.cos(), angles.sin()


def frequencies(device: Any, rotary_dim: int, **rope_parameters: Any) -> Any:
    """Inverse frequencies on a device, cached from the second call on."""
    if dynamo_traces() or dispatch_modes():
        return _new_frequencies(device, rotary_dim, rope_parameters)
    return _cached_frequencies(device, rotary_dim, tuple(sorted(rope_parameters.items())))


def _new_frequencies(device: Any, rotary_dim: int, rope_parameters: dict[str, Any]) -> Any:
    values, _ = rope_frequencies(rope_parameters, rotary_dim, 0)
    return torch.as_tensor(values, dtype=torch.float32).to(device)


@functools.lru_cache(maxsize=64)
def _cached_frequencies(
    device: Any, rotary_dim: int, parameters: tuple[tuple[str, Any], ...]
) -> Any:
    with torch.inference_mode(mode=False):  # autograd cannot use inference tensors later
        return _new_frequencies(device, rotary_dim, dict(parameters))
