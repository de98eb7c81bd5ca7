# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Attention modules that call a rotary function, with ours in its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from membound.torch import huggingface
from membound.torch._patch_class import Recipe
from membound.torch._patch_forward import forward_with, global_of
from membound.torch._patch_trial import LeftAloneError, close, draw, undisturbed

_ROTARY = "apply_rotary_pos_emb"


def calls_rotary(module: nn.Module) -> bool:
    return global_of(type(module), _ROTARY) is not None


def replace_rotary(module: nn.Module) -> tuple[str, Recipe]:
    _check(global_of(type(module), _ROTARY))
    ours = ((_ROTARY, huggingface.apply_rotary_pos_emb),)
    return "rope", Recipe(forward_with, (type(module), ours))


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
