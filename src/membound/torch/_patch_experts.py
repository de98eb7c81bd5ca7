# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gate of a mixture model's experts: transformers' ``_apply_gate`` of the packed projection."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import nn

from membound.torch._gated_activation import gated_activation
from membound.torch._patch_class import Recipe
from membound.torch._patch_decisions import has_conditions
from membound.torch._patch_forward import left_to_compiler
from membound.torch._patch_mlp import replace_gating
from membound.torch._patch_trial import LeftAloneError, default_settings, draw, stand_in

_Names = tuple[str | None, str | None]  # attributes that hold alpha and the limit


def has_gated_experts(module: nn.Module) -> bool:
    return hasattr(module, "_apply_gate") and hasattr(module, "gate_up_proj")


def replace_gate_of_experts(module: nn.Module) -> tuple[str, Recipe]:
    try:
        name, recipe = replace_gating(module, "_apply_gate")
    except LeftAloneError:
        found = _formula(module)
        if found is None:
            raise
        name, recipe = found
    forward = inspect.unwrap(type(module).forward)
    if "_apply_gate" not in forward.__code__.co_names:
        name += ", unless experts_implementation='eager', which gates in its forward"
    return name, recipe


def _formula(module: nn.Module) -> tuple[str, Recipe] | None:
    """The gate as a formula of the module's numbers alone, without an activation: gpt-oss's."""
    cls: Any = type(module)
    names = [name for name in cls._apply_gate.__code__.co_names if hasattr(module, name)]
    are_numbers = all(type(getattr(module, name)) in (int, float) for name in names)
    if not are_numbers or has_conditions(cls, "_apply_gate"):
        return None
    # Numbers that differ show which is which, and inputs are beyond each as a limit.
    twin = stand_in(module, {}, {})
    twin.__dict__.update({name: 1.25 + 0.5 * at for at, name in enumerate(names)})
    with default_settings() as generator:
        x = 4 * draw(generator, 64, 64)
        wanted = cls._apply_gate(twin, x)
        of_number = (None, *names)
        for packing, alpha, limit, offset in itertools.product(
            ("halves", "interleaved"), of_number, of_number, (0.0, 1.0)
        ):
            options = _options(twin, (alpha, limit), offset)
            got = gated_activation(x, packing=packing, **options)
            if wanted.shape == got.shape and torch.allclose(got, wanted, rtol=1e-5, atol=1e-5):
                options = _options(module, (alpha, limit), offset)
                said = ", ".join(f"{name}={value}" for name, value in options.items() if value)
                recipe = Recipe(_gate, (cls, packing, (alpha, limit), offset))
                return f"gated_activation, packing={packing!r}, {said}", recipe
    return None


def _options(module: Any, names: _Names, offset: float) -> dict[str, Any]:
    alpha, limit = (None if name is None else getattr(module, name) for name in names)
    return {"alpha": alpha, "limit": limit, "up_offset": offset}


def _gate(cls: Any, packing: str, names: _Names, offset: float) -> Any:
    def _apply_gate(self, gate_up):
        options = _options(self, names, offset)
        served = options["limit"] is None or options["limit"] > 0
        if not served or left_to_compiler(gate_up):
            return cls._apply_gate(self, gate_up)
        return gated_activation(gate_up, packing=packing, **options)

    return _apply_gate
