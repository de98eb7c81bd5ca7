# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces the rotary function that attention modules call.

Its parameters and a trial with the shapes that callers use determine which of ours it is. Ours must
match every call that the model's function accepts, else the module is left alone.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from membound.torch._patch_class import Recipe
from membound.torch._patch_forward import forward_with, globals_of, left_to_compiler
from membound.torch._patch_trial import LeftAloneError, close, default_settings, draw
from membound.torch._recording import dynamo_traces
from membound.torch.huggingface import turn

Rotary = Callable[..., Any]


class _Form(NamedTuple):
    """What a rotary function does."""

    interleaved: bool = False  # pairs are adjacent
    table: str = "full"  # "full", only its "first half" is used, or each angle is in it "once"
    at_end: bool = False  # the last elements of a head are rotated
    inverse: bool = False
    by_halves: bool = False  # pairs are de-interleaved in the result, one half after the other
    axis: int = 1  # default position of the tables' heads axis
    promotes: bool = False  # q and k are promoted to the table's dtype


_Ours = tuple[Callable[[_Form], Rotary], _Form]
_FORMS = [
    _Form(),
    _Form(interleaved=True),
    _Form(interleaved=True, table="first half"),
    _Form(interleaved=True, table="first half", by_halves=True),
    _Form(interleaved=True, table="once"),
    _Form(interleaved=True, table="once", at_end=True),
    _Form(table="once"),
    _Form(inverse=True),
]


def _rotated(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int, form: _Form) -> Any:
    # Under autocast the next op casts to 16 bits again: promoting would only add two copies.
    if form.promotes and q.dtype != cos.dtype and not torch.is_autocast_enabled(q.device.type):
        kept = torch.promote_types(q.dtype, cos.dtype)
        q, k = q.to(kept), None if k is None else k.to(kept)
    if form.table == "first half":
        cos, sin = (t[..., : t.shape[-1] // 2] for t in (cos, sin))
    width = cos.shape[-1] * (1 if form.table == "full" else 2)
    rotated = turn(
        q, k, cos, sin, unsqueeze_dim, rotary_dim=width, interleaved=form.interleaved,
        inverse=form.inverse, rotary_offset=q.shape[-1] - width if form.at_end else 0,
    )  # fmt: skip
    if not form.by_halves:
        return rotated
    return _by_halves(rotated) if k is None else tuple(map(_by_halves, rotated))


def _by_halves(t: torch.Tensor) -> torch.Tensor:
    return t.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


# Factories of functions with the models' signatures: callers pass arguments by name or position.
def _q_and_k(form):
    def rotary(q, k, cos, sin, unsqueeze_dim=1):
        rotated = _rotated(q, k, cos, sin, unsqueeze_dim, form)
        return (rotated, None) if k is None else rotated

    return rotary


def _with_positions(form):
    def rotary(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):  # noqa: ARG001
        return _rotated(q, k, cos, sin, unsqueeze_dim, form)

    return rotary


def _k_or_none(form):
    def rotary(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
        return _rotated(q, k, cos, sin, unsqueeze_dim, form)

    return rotary


def _one(form):
    def rotary(x, cos, sin, unsqueeze_dim=1):
        return _rotated(x, None, cos, sin, unsqueeze_dim, form)

    return rotary


def _at_one_axis(form):
    def rotary(q, k, cos, sin):
        return _rotated(q, k, cos, sin, form.axis, form)

    return rotary


def _sin_first(form):
    def rotary(tensor, sin, cos):
        return _rotated(tensor, None, cos, sin, -2, form)

    return rotary


_SHAPES = (_q_and_k, _with_positions, _k_or_none, _one, _at_one_axis, _sin_first)


def _with_rotaries(cls: type[nn.Module], names: tuple[tuple[str, _Ours], ...]) -> Any:
    theirs = _rotaries(cls)
    chosen = ((name, _where_ours_serves(make(form), theirs[name])) for name, (make, form) in names)
    return forward_with(cls, tuple(chosen))


def _where_ours_serves(ours: Rotary, theirs: Rotary) -> Rotary:
    """Ours, or the model's if a table requires grad, as rope computes no gradient of tables."""
    index = list(_parameters(theirs)).index("cos")

    def rotary(*args, **kwargs):
        cos = args[index] if len(args) > index else kwargs.get("cos")
        learned = cos is not None and cos.requires_grad and torch.is_grad_enabled()
        fused = dynamo_traces() and left_to_compiler(*args, *kwargs.values())
        return (theirs if learned or fused else ours)(*args, **kwargs)

    return rotary


def _parameters(function: Rotary) -> dict[str, bool]:
    """Parameter names, and whether each has a default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is not p.empty for p in parameters if p.kind is not p.KEYWORD_ONLY}


def _rotaries(cls: type[nn.Module]) -> dict[str, Rotary]:
    return globals_of(cls, "apply_rotary")


def calls_rotary(module: nn.Module) -> bool:
    return bool(_rotaries(type(module)))


def replace_rotary(module: nn.Module) -> tuple[str, Recipe]:
    ours = []
    for name, theirs in _rotaries(type(module)).items():
        found = _ours(theirs)
        if isinstance(found, str):
            raise LeftAloneError(found)
        ours.append((name, found))
    return "rope", Recipe(_with_rotaries, (type(module), tuple(ours)))


@functools.lru_cache(maxsize=64)
def _ours(theirs: Rotary) -> _Ours | str:
    """The form of ours that matches a rotary function, or why there is none."""
    names = list(_parameters(theirs).items())
    plain = (shape for shape in _SHAPES if list(_parameters(shape(_Form())).items()) == names)
    shape = next(plain, None)
    if shape is None:
        return f"its {theirs.__name__} takes other arguments than those of rope"
    axes = (-2, 1, -3) if shape is _at_one_axis else (1,)
    with default_settings() as generator:
        calls = list(_accepted(theirs, generator))
        for form, axis, promotes in itertools.product(_FORMS, axes, (False, True)):
            form = form._replace(axis=axis, promotes=promotes)
            if calls and all(_same(shape(form), call, right) for call, right in calls):
                return shape, form
    return f"its {theirs.__name__} computes something else than rope"


def _accepted(theirs: Rotary, generator: Any) -> Iterator[tuple[Any, Any]]:
    """Calls that the model's function accepts, and its results."""
    names = _parameters(theirs)
    for call in _calls(generator):
        given = {name: call[name] for name in names if name in call}
        if "q" not in names:
            given[next(name for name in names if name in ("x", "tensor"))] = call["q"]
        try:
            right = theirs(**given)
        except Exception:  # noqa: BLE001, S112 - foreign code refuses the call
            continue
        if (right[0] if isinstance(right, tuple) else right).shape == call["q"].shape:
            yield given, right


def _calls(generator: Any) -> Iterator[dict[str, Any]]:
    """Calls with both layouts of q and k, full or partial tables, per sequence or shared.

    Some functions take fewer queries than the table has rows, some take no k.
    """
    cases = itertools.product((4, 3), ("bhsd", "bshd"), (2, 3), (3, 2), (16, 8, 4))
    for axes, layout, table_axes, queries, columns in cases:
        sizes = {"b": 2, "h": 4, "s": queries, "d": 16}
        q = draw(generator, *(sizes[axis] for axis in layout[4 - axes :]))
        k = draw(generator, *({**sizes, "h": 2, "s": 3}[axis] for axis in layout[4 - axes :]))
        if table_axes >= axes:
            continue
        half = [draw(generator, *(2, 3)[3 - table_axes :], columns // 2) for _ in range(2)]
        cos, sin = (torch.cat((t, t), -1) for t in half)
        heads = layout.index("h") - 4 + table_axes + 1  # position of the tables' heads axis
        for dtype, keyed in ((torch.float32, True), (torch.bfloat16, True), (torch.float32, False)):
            given = {"q": q.to(dtype), "k": k.to(dtype) if keyed else None, "cos": cos, "sin": sin}
            yield {**given, "unsqueeze_dim": heads}


def _same(ours: Rotary, call: dict[str, Any], right: Any) -> bool:
    try:
        got = ours(**call)
    except (RuntimeError, ValueError, TypeError):  # ours refuses the call
        return False
    if not isinstance(right, tuple):
        return isinstance(got, torch.Tensor) and close(got, right)
    if not isinstance(got, tuple) or len(got) != len(right):
        return False
    pairs = zip(got, right, strict=True)
    return all(mine is theirs if theirs is None else close(mine, theirs) for mine, theirs in pairs)
