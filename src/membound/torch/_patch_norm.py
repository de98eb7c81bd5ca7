# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of a model, and what computes the same here."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch
from torch import nn

from membound.torch._layer_norm import layer_norm
from membound.torch._modules import default_eps
from membound.torch._patch_class import Recipe
from membound.torch._patch_trial import LeftAloneError, close, draw, takes_one_tensor, undisturbed
from membound.torch._rms_norm import rms_norm

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
# What is added to the weight, and the rounding.
_FORMS = [(offset, rounding) for offset in (0.0, 1.0) for rounding in ("before_weight", "once")]


def is_rms_norm(module: nn.Module) -> bool:
    own = {name for name, p in module.named_parameters(recurse=False) if p is not None}
    return "RMSNorm" in type(module).__name__ and own <= {"weight"} and not list(module.children())


def replace_rms_norm(module: nn.Module) -> tuple[str, Recipe]:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 1:
        raise LeftAloneError("it has no weight of one axis")
    if not takes_one_tensor(module):
        raise LeftAloneError("its forward takes more than one tensor")
    eps_name = next((name for name in _EPS_NAMES if hasattr(module, name)), None)
    if eps_name is None or not isinstance(getattr(module, eps_name), (int, float, type(None))):
        raise LeftAloneError("it names no eps")
    with undisturbed() as generator:
        weights, x = draw(generator, weight.shape[0]), draw(generator, 4, weight.shape[0])
        x[3] *= 2**-8  # a row that shows eps
        offset, rounding = _form(module, eps_name, weights.bfloat16(), x.bfloat16())
        _check_large(module, (eps_name, offset, rounding), weights, x)
        mixes = _mixes(module, (eps_name, offset, rounding), weights, x)
    named = "rms_norm" + (", weight_offset=1" if offset else "")
    recipe = Recipe(_rms_norm_recipe, (type(module), eps_name, offset, rounding, mixes))
    return f"{named}, rounding={rounding!r}", recipe


def _form(module: nn.Module, eps_name: str, weight: Any, x: Any) -> tuple[float, str]:
    """The first form that gives the module's result, bit for bit or nearly so.

    In bfloat16 and with weights drawn at random, whatever the model's are: where a result is
    rounded shows neither in float32 nor with the weights of 1 that training starts from.
    """
    stand_in = _with_weight(module, weight)
    wanted = type(module).forward(stand_in, x)
    found = {form: _rms_norm_forward(stand_in, None, eps_name, *form, True, x) for form in _FORMS}
    for same in (torch.equal, close):
        for form, got in found.items():
            if got.dtype == wanted.dtype and same(got, wanted):
                return form
    raise LeftAloneError("it computes something else")


def _check_large(module: nn.Module, form: tuple[Any, ...], weight: Any, x: Any) -> None:
    """Ours is the module's too where a clamp of what comes in, or of the result, would show."""
    for of_weight, of_x in ((2.0**13, 1.0), (1.0, 2.0**13)):
        stand_in, here = _with_weight(module, weight * of_weight), x * of_x
        wanted = type(module).forward(stand_in, here)
        if not close(_rms_norm_forward(stand_in, None, *form, True, here), wanted):
            raise LeftAloneError("it computes something else where values are large")


def _mixes(module: nn.Module, form: tuple[Any, ...], weight: Any, x: Any) -> bool:
    """Whether ours is the module's too where x and weight differ in dtype: many promote."""
    for kind, other in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        stand_in, here = _with_weight(module, weight.to(kind)), x.to(other)
        try:
            wanted = type(module).forward(stand_in, here)
        except RuntimeError:  # it takes no such pair
            return False
        if not close(_rms_norm_forward(stand_in, None, *form, True, here), wanted):
            return False
    return True


def _with_weight(module: nn.Module, weight: torch.Tensor) -> nn.Module:
    stand_in = copy.copy(module)
    own = {"weight": nn.Parameter(weight, requires_grad=False)}
    stand_in.__dict__["_parameters"] = own
    return stand_in


def _rms_norm_recipe(cls, *form):
    first = list(inspect.signature(cls.forward).parameters)[1]

    @functools.wraps(cls.forward)
    def forward(self, *args, **kwargs):
        if len(args) == 1 and not kwargs:
            return _rms_norm_forward(self, cls, *form, args[0])
        if not args and list(kwargs) == [first]:
            return _rms_norm_forward(self, cls, *form, kwargs[first])
        return cls.forward(self, *args, **kwargs)  # with a gate or a residual: not tried

    return forward


def _rms_norm_forward(self, cls, eps_name, offset, rounding, mixes, hidden_states):
    if not mixes and hidden_states.dtype != self.weight.dtype:
        return cls.forward(self, hidden_states)
    eps = getattr(self, eps_name)
    if eps is None:
        eps = default_eps(hidden_states.dtype)
    return rms_norm(hidden_states, self.weight, eps=eps, weight_offset=offset, rounding=rounding)


def replace_layer_norm(module: nn.Module) -> tuple[str, Recipe]:
    if len(module.normalized_shape) != 1:
        raise LeftAloneError("it normalises over several axes")
    return "layer_norm", Recipe(_layer_norm_forward)


def _layer_norm_forward():
    def forward(self, input):  # noqa: A002 - torch.nn's name
        return layer_norm(input, self.weight, self.bias, eps=self.eps)

    return forward
