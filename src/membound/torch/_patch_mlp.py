# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Gated MLPs of a model, with the activation and the product in one pass.

The source of the class's method is parsed, and its one expression ``act(gate) * up`` replaced. A
trial confirms the activation. If the activation has hooks or was exchanged, the original runs.
"""

from __future__ import annotations

import ast
import copy
import functools
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._patch_class import Recipe
from membound.torch._patch_forward import left_to_compiler
from membound.torch._patch_gating import CALL, with_gating
from membound.torch._patch_source import compiled, definition
from membound.torch._patch_trial import LeftAloneError, default_settings
from membound.torch._recording import dynamo_traces

_KINDS = (
    ("silu", 1.0), ("silu", 1.702), ("gelu_tanh", 1.0), ("gelu", 1.0), ("relu2", 1.0),
    ("relu", 1.0), ("sigmoid", 1.0),
)  # fmt: skip
_FUNCTIONS = (nn.functional.silu, nn.functional.gelu)
_PARTS = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"}, {"Wi", "Wo"})


def is_gated_mlp(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_children()}
    if any(parts <= names for parts in _PARTS):
        return True
    layers = [p for p in module.parameters() if p.dim() > 1]
    return len(layers) > 1 and len(_activations(module, "forward")) == 1


def replace_gated_mlp(module: nn.Module) -> tuple[str, Recipe]:
    return replace_gating(module, "forward")


def replace_gating(module: nn.Module, method: str) -> tuple[str, Recipe]:
    cls = type(module)
    definition(getattr(cls, method))  # raises if there is no source
    acts = _activations(module, method)
    if len(acts) != 1:
        raise LeftAloneError("it has no product of the form act(gate) * up")
    ((text, act),) = acts.items()
    kind, alpha = _kind_of(act)
    like = type(act) if isinstance(act, nn.Module) else act
    known = like, _approximate(act), kind, alpha
    recipe = Recipe(_method, (cls, method, text, known))
    recipe.make(*recipe.arguments)  # raises if the method cannot be changed
    return f"gated_activation, kind={kind!r}" + (f", alpha={alpha}" if alpha != 1 else ""), recipe


def _activations(module: nn.Module, method: str) -> dict[str, Any]:
    """Callables without weights whose result is a factor of a product, by source text."""
    function = getattr(type(module), method)
    found = {text: _called(module, function, text) for text in _factors(type(module), method)}
    return {text: act for text, act in found.items() if _is_activation(act)}


@functools.cache
def _factors(cls: type[nn.Module], method: str) -> tuple[str, ...]:
    """Source texts of the calls in the method whose result is a factor of a product."""
    found: list[str] = []
    try:
        with_gating(definition(getattr(cls, method)), lambda node: found.append(ast.unparse(node)))
    except LeftAloneError:
        return ()
    return tuple(dict.fromkeys(found))


def _called(module: nn.Module, function: Any, text: str) -> Any:
    first, *rest = text.split(".")
    held = module if first == "self" else function.__globals__.get(first)
    for name in rest:
        held = getattr(held, name, None)
    return held


def _is_activation(act: Any) -> bool:
    if not isinstance(act, nn.Module):
        return any(act is function for function in _FUNCTIONS)
    return not any(True for _ in act.parameters()) and not isinstance(act, nn.Dropout)


def _kind_of(act: Any) -> tuple[str, float]:
    """The first of our kinds that matches the activation, for large values and near zero."""
    name = getattr(act, "__name__", type(act).__name__)
    known = type(act).__module__.startswith(("torch.", "transformers."))
    if isinstance(act, nn.Module) and not known:
        raise LeftAloneError(f"its activation {name} is neither torch's nor transformers'")
    if getattr(act, "inplace", False):
        raise LeftAloneError(f"its activation {name} changes the gate in place")
    with default_settings():
        near = torch.linspace(-12, 12, 4801)
        far = torch.tensor([-1e4, -1e3, -100.0, 100.0, 1e3, 1e4])
        x = torch.cat((near, far))
        wanted = _without_hooks(act)(x)
        for kind, alpha in _KINDS:
            got = gated_activation(x, kind=kind, packing="gate", alpha=alpha)
            if torch.allclose(got, wanted, rtol=1e-5, atol=1e-6):
                return kind, alpha
    raise LeftAloneError(f"its activation {name} is not one of gated_activation's")


def _without_hooks(act: Any) -> Any:
    """The function that a call computes, without firing hooks."""
    if not isinstance(act, nn.Module):
        return act
    return functools.partial(type(act).forward, copy.copy(act))


def _method(cls: type[nn.Module], method: str, text: str, known: tuple[Any, ...]) -> Any:
    """The class's method with the call of that text replaced as the gate's activation."""
    function = getattr(cls, method)
    tree = with_gating(definition(function), lambda node: ast.unparse(node) == text)
    if tree is None:
        raise LeftAloneError("it has no product of the form act(gate) * up")
    return compiled(function, tree, **{CALL: _gating(known)})


def _gating(known: tuple[Any, ...]) -> Any:
    like, approximate, kind, alpha = known
    is_module = isinstance(like, type)

    def is_known(act):
        if not is_module:
            return act is like
        return type(act) is like and _is_bare(act) and _approximate(act) == approximate

    def gating(projection, act, gate, up, limit):
        """``projection(act(gate) * up)``; up None: gate packs both, limit: both are clamped."""
        # Under Dynamo a read of act is a guard, which each step of a compiled model checks.
        traces = dynamo_traces()
        if (traces and left_to_compiler(gate, up)) or not (
            is_known(act) and _are_alike(gate, up, limit)
        ):
            result = _as_it_was(act, gate, up, limit)
            return result if projection is None else projection(result)
        options = {"kind": kind, "alpha": alpha, "limit": limit}
        if projection is None:
            return gated_activation(gate, up, **options)
        if torch.is_grad_enabled() and not traces and _is_bare_linear(projection):
            # The last projection's saved input is recomputed in the backward.
            return gated_linear(gate, up, projection.weight, projection.bias, **options)
        return projection(gated_activation(gate, up, **options))

    return gating


def _approximate(act):
    """The attribute of nn.GELU; that others lack it, nn.Module finds out in two microseconds."""
    return getattr(act, "__dict__", {}).get("approximate")


def _are_alike(gate, up, limit):
    if limit is not None and not limit > 0:
        return False
    if up is None:
        return gate.is_floating_point() and gate.shape[-1] % 2 == 0
    return (
        isinstance(gate, torch.Tensor)
        and isinstance(up, torch.Tensor)
        and gate.is_floating_point()
        and gate.shape == up.shape
        and gate.dtype == up.dtype
    )


def _as_it_was(act, gate, up, limit):
    if up is None:
        gate, up = gate.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return act(gate) * up


def _is_bare(module: nn.Module) -> bool:
    """Whether calling the module runs its class's forward and nothing else."""
    own = module.__dict__
    if "forward" in own or _has_any_global_hook():
        return False
    return not (
        own["_forward_hooks"] or own["_forward_pre_hooks"]
        or own["_backward_hooks"] or own["_backward_pre_hooks"]
    )  # fmt: skip


def _is_bare_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear and _is_bare(module)
