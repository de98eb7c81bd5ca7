# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated MLPs of a model, with the activation and the product in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._patch_class import Recipe
from membound.torch._patch_trial import LeftAloneError, draw, takes_one_tensor, undisturbed
from membound.torch._recording import dynamo_traces

_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
}


def _activation(module: nn.Module) -> str:
    for name in ("act_fn", "activation_fn", "act"):
        act = getattr(module, name, None)
        if act is None:
            continue
        if isinstance(act, nn.GELU):
            return "gelu_tanh" if act.approximate == "tanh" else "gelu"
        if type(act).__name__ in _ACTIVATIONS:
            return _ACTIVATIONS[type(act).__name__]
        raise LeftAloneError(f"its activation is {type(act).__name__}")
    raise LeftAloneError("it names no activation")


def is_gated_mlp(module: nn.Module) -> bool:
    parts = {name for name, _ in module.named_children()}
    return any(layers <= parts for layers in _MLP_FORWARDS)


def _down(projection, kind, gate, up=None):
    """The last projection, with the activation that it would keep made again in the backward."""
    if torch.is_grad_enabled() and not dynamo_traces() and _is_bare_linear(projection):
        return gated_linear(gate, up, projection.weight, projection.bias, kind=kind)
    return projection(gated_activation(gate, up, kind=kind))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_bare_linear(module: nn.Module) -> bool:
    """Whether a call of the module is its product and nothing else: no adapter, no hook."""
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return False
    return not (any(getattr(module, name) for name in _HOOKS) or _has_any_global_hook())


def _forward_gate_up_down(self, kind, x):
    return _down(self.down_proj, kind, self.gate_proj(x), self.up_proj(x))


def _forward_packed_down(self, kind, hidden_states):
    return _down(self.down_proj, kind, self.gate_up_proj(hidden_states))


def _forward_wi_wo(self, kind, hidden_states):
    if self.drop.training and self.drop.p > 0:
        return self.Wo(self.drop(gated_activation(self.Wi(hidden_states), kind=kind)))
    return _down(self.Wo, kind, self.Wi(hidden_states))


_MLP_FORWARDS: dict[frozenset[str], Callable[..., Any]] = {
    frozenset({"gate_proj", "up_proj", "down_proj"}): _forward_gate_up_down,
    frozenset({"gate_up_proj", "down_proj"}): _forward_packed_down,
    frozenset({"Wi", "Wo", "drop"}): _forward_wi_wo,
}


def replace_gated_mlp(module: nn.Module) -> tuple[str, Recipe]:
    kind = _activation(module)
    if not takes_one_tensor(module):
        raise LeftAloneError("its forward takes more than one tensor")
    parts = {name for name, _ in module.named_children()}
    layers = next(layers for layers in _MLP_FORWARDS if layers <= parts)
    first = next(child for name, child in module.named_children() if name in layers)
    if not isinstance(first, nn.Linear):
        raise LeftAloneError(f"its first projection is {type(first).__name__}")
    recipe = Recipe(_mlp_forward, (layers, kind))
    forward = functools.partial(recipe.make(*recipe.arguments), module)
    was_training = module.training
    module.train(False)  # dropout has no place in a trial
    try:
        _check(module, forward, first.in_features)
    finally:
        module.train(was_training)
    return f"gated_activation, kind={kind!r}", recipe


def _mlp_forward(layers, kind):
    ours = _MLP_FORWARDS[layers]

    def forward(self, x):
        return ours(self, kind, x)

    return forward


def _check(module: nn.Module, forward: Callable[..., Any], cols: int) -> None:
    """A product of matrices carries one rounding into many results: looser than a norm's trial."""
    weight = next(module.parameters())
    if weight.device.type == "meta":
        raise LeftAloneError("its weights are on the meta device")
    with undisturbed(str(weight.device)) as generator:
        x = draw(generator, 2, cols).to(weight)
        wanted, got = type(module).forward(module, x), forward(x)
    scale = wanted.abs().max().item()
    if not (got - wanted).abs().max().item() <= 16 * torch.finfo(x.dtype).eps * scale:
        raise LeftAloneError("it computes something else")
