# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Attention modules that call a rotary function, with ours in its place."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from membound.torch import huggingface
from membound.torch._patch_trial import LeftAloneError, close, draw, undisturbed

_ROTARY = "apply_rotary_pos_emb"


def calls_rotary(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and _ROTARY in code.co_names


def replace_rotary(module: nn.Module) -> tuple[str, Any]:
    forward = type(module).forward
    theirs = forward.__globals__.get(_ROTARY)
    if hasattr(forward, "__wrapped__") or theirs is None:
        raise LeftAloneError("its forward is wrapped in another function")
    _check(theirs)
    return "rope", functools.partial(_WithOurs(type(module)), module)


class _WithOurs:
    """A class's forward with our rotary function. It pickles as the class that it is made of."""

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls = cls
        forward: Any = cls.forward
        # The same code over the same globals but for one name, so that no other model changes.
        scope = {**forward.__globals__, _ROTARY: huggingface.apply_rotary_pos_emb}
        self.function = types.FunctionType(
            forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__
        )
        self.function.__kwdefaults__ = forward.__kwdefaults__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _WithOurs, (self.cls,)


def _check(theirs: Callable[..., Any]) -> None:
    names = list(inspect.signature(theirs).parameters)
    if names[:5] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        raise LeftAloneError(f"its {_ROTARY} takes other arguments")
    with undisturbed() as generator:
        q, k = (draw(generator, 1, heads, 3, 8) for heads in (4, 2))
        half = draw(generator, 1, 3, 4)
        cos, sin = (torch.cat((t, t), -1) for t in (half, half.flip(-1)))
        wanted = theirs(q, k, cos, sin)
        if not all(map(close, huggingface.apply_rotary_pos_emb(q, k, cos, sin), wanted)):
            raise LeftAloneError(f"its {_ROTARY} computes something else")
