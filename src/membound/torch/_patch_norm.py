# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces norms of a model, recognised by what their forward computes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from membound.torch._layer_norm import layer_norm
from membound.torch._modules import default_eps
from membound.torch._patch_class import Recipe
from membound.torch._patch_decisions import attributes_read, states_decided_by
from membound.torch._patch_forward import left_to_compiler
from membound.torch._patch_trial import LeftAloneError, close, default_settings, draw, stand_in
from membound.torch._recording import dynamo_traces
from membound.torch._rms_norm import rms_norm, rms_norm_gated

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
_MOST_EPS = 1e-2
_UNWEIGHTED_COLS = 64  # width of the trial of a norm without a weight
_ELSE = "it computes something else than our norms"


@dataclass(frozen=True)
class Norm:
    """What a module computes, as arguments of our functions."""

    eps: str | float  # an attribute's name, if there is one
    centred: bool = False
    weight_offset: float = 0.0
    rounding: str = "once"
    group: int | None = None  # columns per group, if not all of a row are normalised together
    norm_before_gate: bool = True

    def __str__(self) -> str:
        offset = ", weight_offset=1" if self.weight_offset else ""
        if self.centred:
            return f"layer_norm{offset}"
        return f"rms_norm{offset}, rounding={self.rounding!r}"

    def __call__(self, module: Any, x: torch.Tensor, gate: torch.Tensor | None = None) -> Any:
        eps = getattr(module, self.eps) if isinstance(self.eps, str) else self.eps
        options = {
            "eps": default_eps(x) if eps is None else eps,
            "weight_offset": self.weight_offset,
        }
        weight = _parameter(module, "weight")
        if self.group is not None:
            x, gate, weight = (
                None if one is None else one.unflatten(-1, (-1, self.group))
                for one in (x, gate, weight)
            )
        if weight is not None and weight.dim() == 2:
            options["normalized_shape"] = weight.shape[1]
        if self.centred:
            return layer_norm(x, weight, _parameter(module, "bias"), **options)
        options["rounding"] = self.rounding
        if gate is None:
            y = rms_norm(x, weight, **options)
        else:
            y = rms_norm_gated(x, gate, weight, norm_before_gate=self.norm_before_gate, **options)
        return y if self.group is None else y.flatten(-2)


def is_norm(module: nn.Module) -> bool:
    """Whether it may be a norm: by its name, which only decides whether a trial is run."""
    own = {name for name, p in module.named_parameters(recurse=False) if p is not None}
    if list(module.children()) or not own <= {"weight", "bias"}:
        return False
    if type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.RMSNorm):
        return False
    named = "norm" in type(module).__name__.lower()
    return named or ("weight" in own and any(hasattr(module, name) for name in _EPS_NAMES))


def replace_norm(module: nn.Module) -> tuple[str, Recipe]:
    names, gate, others = _parameters_of(module)
    weight, bias = _parameter(module, "weight"), _parameter(module, "bias")
    if weight is not None and weight.dim() not in (1, 2):
        raise LeftAloneError("its weight has neither one axis nor two")
    if weight is not None and 1 in weight.shape:
        raise LeftAloneError("its weight has one element for rows of any width, or for all heads")
    if weight is None and bias is not None:
        raise LeftAloneError("it has a bias and no weight")
    stays, states = attributes_read(module), states_decided_by(type(module))
    with default_settings() as generator:
        trial = _Trial(module, generator, "dtype" in states)
        optional = gate is None or names[gate] is None
        norm = trial.first(_norms_of(module)) if optional else None
        gated = None if gate is None else _gated(module, norm, trial)
        if norm is None and gated is None:
            raise LeftAloneError(_ELSE + " where values are large" * trial.has_limits)
        mixes = norm is not None and trial.mixes(norm)
        axes = trial.axes(norm, gated)
    what = str(norm or gated)
    if gated is not None:
        what = f"rms_norm_gated, norm_before_gate={gated.norm_before_gate}, {what}"
        what = what.replace("rms_norm, ", "", 1)
    elif gate is not None:
        others = (gate, *others)
    if others:
        what += "; its own forward where '" + "' or '".join(others) + "' is given"
    stays = {n: v for n, v in stays.items() if n not in [one.eps for one in (norm, gated) if one]}
    arguments = (type(module), tuple(names), norm, gate if gated else None, gated, mixes, axes)
    guards = (tuple(stays.items()), "is_autocast_enabled" in states)
    return what, Recipe(_norm_forward, (*arguments, *guards))


def _parameters_of(module: nn.Module) -> tuple[dict[str, Any], str | None, tuple[str, ...]]:
    """The parameters of forward with defaults, the gate's, and those that we do not support."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    all_of = list(inspect.signature(type(module).forward).parameters.values())[1:]
    names = {p.name: p.default for p in all_of if p.kind not in kinds}
    gate = next((name for name in list(names)[1:] if name in ("gate", "z")), None)
    others = tuple(name for name in list(names)[1:] if name != gate)
    if not names or any(names[name] is inspect.Parameter.empty for name in others):
        raise LeftAloneError("its forward needs more than one tensor")
    return names, gate, others


def _parameter(module: Any, name: str) -> Any:
    value = module._parameters.get(name)
    if value is not None:  # looked up as an attribute it takes a microsecond
        return value
    if name in module._buffers:  # FalconMamba's is not used, Gemma 3n's is 1
        return None
    value = getattr(module, name, None)
    return value if isinstance(value, torch.Tensor) else None


def _eps_of(module: nn.Module) -> list[str | float]:
    """Candidates for eps: attributes of that name, other small ones, constants in its code."""
    named: list[str | float] = [name for name in _EPS_NAMES if hasattr(module, name)]
    if named:
        return [n for n in named if isinstance(getattr(module, str(n)), (int, float, type(None)))]
    small = [n for n, v in vars(module).items() if isinstance(v, float) and 0 < v <= _MOST_EPS]
    constants = type(module).forward.__code__.co_consts
    return [*small, *(c for c in constants if isinstance(c, float) and 0 < c <= _MOST_EPS)]


def _groups_of(module: nn.Module) -> list[int | None]:
    weight = _parameter(module, "weight")
    if weight is None or weight.dim() != 1:
        return [None]
    cols, found = weight.shape[0], {None: None}
    for name, per in (("group_size", 1), ("n_groups", cols), ("num_groups", cols)):
        number = getattr(module, name, None)
        if isinstance(number, int) and number > 0:
            of_group = number if per == 1 else cols // number
            if 0 < of_group < cols and cols % of_group == 0:
                found[of_group] = None
    return list(found)


def _norms_of(module: nn.Module) -> Iterator[Norm]:
    for eps in _eps_of(module):
        for group in _groups_of(module) if _parameter(module, "bias") is None else ():
            for offset in (0.0, 1.0):
                for rounding in ("before_weight", "once"):
                    yield Norm(eps, False, offset, rounding, group)
        for offset in (0.0, 1.0):
            yield Norm(eps, True, offset)


def _gated(module: nn.Module, norm: Norm | None, trial: _Trial) -> Norm | None:
    """The norm with a gate; ``norm`` itself without one."""
    likely = [norm] if norm is not None else _norms_of(module)
    forms = [
        dataclasses.replace(one, norm_before_gate=before)
        for one in likely
        for before in (False, True)
        if not one.centred
    ]
    return trial.first(forms, has_gate=True)


class _Trial:
    """Compares the module's own forward with ours, on random weights.

    Trials in bfloat16 with random weights show where a result is rounded, which float32 or the
    initial weights of 1 would hide. Rows of magnitude 2^13 reveal a clamp, small ones reveal eps.
    """

    def __init__(self, module: nn.Module, generator: torch.Generator, in_float16: bool) -> None:
        self.module = module
        self.dtypes = (torch.float32, torch.float16)[: 1 + in_float16]
        weight = _parameter(module, "weight")
        shape = (_UNWEIGHTED_COLS,) if weight is None else tuple(weight.shape)
        if weight is None and isinstance(getattr(module, "normalized_shape", None), tuple):
            shape = module.normalized_shape[-1:]
        self.weight, self.bias = (draw(generator, *shape) for _ in range(2))
        self.x, self.gate = (draw(generator, 2, 4, *shape) for _ in range(2))
        self.x[0, 3] *= 2**-8
        self.has_limits = False  # a clamp, which small values did not reveal

    def first(self, norms: Iterable[Norm], *, has_gate: bool = False) -> Norm | None:
        """The form that gives the module's result, with the fewest differing bits in 16 bits."""
        differing = {n: self._differing(n, torch.bfloat16, 1.0, 1.0, has_gate) for n in norms}
        alike = [
            n for n, count in differing.items()
            if count is not None and all(self._same(n, d, 1.0, 1.0, has_gate) for d in self.dtypes)
        ]  # fmt: skip
        large = ((2.0**13, 1.0), (1.0, 2.0**13))
        near = [n for n in alike if all(self._same(n, torch.float32, *s, has_gate) for s in large)]
        self.has_limits = bool(alike) and not near
        return min(near, key=lambda n: differing[n] or 0, default=None)

    def mixes(self, norm: Norm) -> bool:
        """Whether ours also matches if x and weight differ in dtype, where many modules promote."""
        pairs = ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32))
        return all(self._same(norm, x, 1.0, 1.0, False, weight) for weight, x in pairs)

    def axes(self, norm: Norm | None, gated: Norm | None) -> tuple[int, ...]:
        """The numbers of axes of x for which ours matches."""
        forms = [(form, form is gated) for form in (norm, gated) if form is not None]
        other, found = copy.copy(self), []
        for view in (
            lambda x: x[0, 0], lambda x: x.flatten(0, 1), lambda x: x, lambda x: x[None],
            lambda x: x[None, None],
        ):  # fmt: skip
            other.x, other.gate = view(self.x), view(self.gate)
            if all(other._same(form, torch.float32, 1.0, 1.0, gate) for form, gate in forms):
                found.append(other.x.dim())
        return tuple(found)

    def _same(self, *case: Any) -> bool:
        return self._differing(*case) is not None

    def _differing(
        self, norm: Norm, dtype: torch.dtype, of_weight: float, of_x: float, has_gate: bool,
        of_parameters: torch.dtype | None = None,
    ) -> int | None:  # fmt: skip
        """How many elements differ in the last bits; None if the results differ by more."""
        own = {}
        for name, value in (("weight", self.weight * of_weight), ("bias", self.bias)):
            if name in self.module._parameters:
                held = _parameter(self.module, name)
                kept = None if held is None else value.to(of_parameters or dtype)
                own[name] = None if kept is None else nn.Parameter(kept, requires_grad=False)
        # Other values of buffers show which attribute is used.
        buffers = {n: torch.full(b.shape, 1.5) for n, b in self.module.named_buffers(recurse=False)}
        twin = stand_in(self.module, own, buffers)
        arrays = [(self.x * of_x).to(dtype), self.gate.to(dtype)][: 2 if has_gate else 1]
        try:
            wanted = type(self.module).forward(twin, *arrays)
            got = norm(twin, *arrays)
        except Exception:  # noqa: BLE001 - a stranger's code, or a call that we do not take
            return None
        if not isinstance(wanted, torch.Tensor) or wanted.shape != got.shape:
            return None
        return int((got != wanted).sum()) if close(got, wanted, norm.centred) else None


def _norm_forward(cls, names, norm, gate_name, gated, mixes, axes, stays, by_autocast):
    first = names[0]

    def ours(self, x, gate, rest):
        """The form for a supported call, else None."""
        form = norm if gate is None else gated
        if form is None or x is None or (rest and any(one is not None for one in rest)):
            return None
        # Under Dynamo a read of a module is a guard, which each step of a compiled model checks.
        if dynamo_traces() and (
            not torch.is_grad_enabled()
            or left_to_compiler(x, gate, _parameter(self, "weight"), _parameter(self, "bias"))
        ):
            return None
        if not mixes and not _is_of_one_dtype(self, x):
            return None
        if x.dim() not in axes:
            return None
        if stays and any(getattr(self, n, None) != value for n, value in stays):
            return None
        if by_autocast and torch.is_autocast_enabled(x.device.type):
            return None
        if gate is None:
            return form
        return form if gate.dtype == x.dtype and gate.shape == x.shape else None

    @functools.wraps(cls.forward)
    def forward(self, *args, **kwargs):
        if len(args) == 1 and not kwargs:
            form = ours(self, args[0], None, ())
            return cls.forward(self, *args) if form is None else form(self, *args)
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        x, gate = given.pop(first, None), given.pop(gate_name, None)
        form = ours(self, x, gate, given.values())
        return cls.forward(self, *args, **kwargs) if form is None else form(self, x, gate)

    return forward


def _is_of_one_dtype(module, x):
    weight = _parameter(module, "weight")
    return weight is None or weight.dtype == x.dtype


def replace_layer_norm(module: nn.Module) -> tuple[str, Recipe]:
    if len(module.normalized_shape) != 1:
        raise LeftAloneError("it normalises over several axes")
    return "layer_norm", Recipe(_layer_norm_forward)


def _layer_norm_forward():
    def forward(self, input):  # noqa: A002 - torch.nn's name
        if dynamo_traces() and left_to_compiler(input, self.weight, self.bias):
            return nn.LayerNorm.forward(self, input)
        return layer_norm(input, self.weight, self.bias, eps=self.eps)

    return forward
