# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Swap the memory-bound parts of a model for membound's, in place.

A module is recognised by its parts (a weight and an eps; a gate, an up and a down projection) and
by a trial on a few random rows: it is replaced only if one of our functions gives its result. So
there is no list of models, and a module that computes something else is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from membound._table import render
from membound.torch._patch_class import Recipe, install, patched_class, recipes_of, uninstall
from membound.torch._patch_embedding import is_embedding, replace_embedding
from membound.torch._patch_experts import has_gated_experts, replace_gate_of_experts
from membound.torch._patch_loss import makes_loss, replace_loss
from membound.torch._patch_mask import makes_causal_mask, replace_causal_mask
from membound.torch._patch_mlp import is_gated_mlp, replace_gated_mlp
from membound.torch._patch_norm import (
    is_norm,
    replace_layer_norm,
    replace_norm,
)
from membound.torch._patch_rotary import calls_rotary, replace_rotary
from membound.torch._patch_trial import LeftAloneError


@dataclass(frozen=True)
class Row:
    """The outcome for one part of the modules of one class."""

    part: str  # the name of its switch
    module: str
    count: int
    replaced_by: str | None
    why_left: str = ""


@dataclass
class Report:
    """What :func:`patch` replaced and what it left, by class of module. It prints as a table."""

    rows: list[Row] = field(default_factory=list)

    @property
    def replaced(self) -> int:
        return sum(row.count for row in self.rows if row.replaced_by)

    def __str__(self) -> str:
        cells = [
            (r.part, r.module, str(r.count), r.replaced_by or "-", r.why_left) for r in self.rows
        ]
        return render(("part", "module", "count", "now", "left because"), cells)


def patch(
    model: nn.Module, *, norms: bool = True, rope: bool = True, mlp: bool = True,
    embedding: bool = True, loss: bool = True, mask: bool = True,
) -> Report:  # fmt: skip
    """Replace norms, the rotary function, gated MLPs, embeddings, the loss and masks, in place.

    Found by structure and by what they compute, not by name. Weights, hooks and state dicts stay. A
    module that is replaced gets a subclass of its class with the same name and a ``forward`` or
    loss of ours, so no other model changes. Its copies are patched too, and so is what a pickle of
    the whole model loads (with the version of membound that wrote it). :func:`unpatch` undoes it.
    A second call replaces what the first left out.

    Args:
        model: before or after ``.to()``, torch.compile, ``fully_shard``, DDP and PEFT's adapters;
            before what stores a ``forward`` in its modules, as accelerate's offloading does.
        norms: norms of one axis, with a gate too.
        rope: the ``apply_rotary_pos_emb`` that attention modules call.
        mlp: gated MLPs with gate, up and down projections (apart or fused), and experts.
        embedding: embeddings, scaled too.
        loss: the ``loss_function`` of a language model, computed from its logits as they are; the
            model's own makes float32 copies of them.
        mask: the masks of models that call transformers' ``create_causal_mask``: given no mask,
            positions or cache they make none for SDPA, which is causal by itself.

    Returns:
        A table of what was replaced, by what, and what was left and why.

    Raises:
        TypeError: the model is no torch.nn.Module, or a switch no bool.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    >>> print(patch(model, embedding=False))
    part   module     count  now         left because
    -----  ---------  -----  ----------  ------------
    norms  LayerNorm      1  layer_norm
    >>> unpatch(model)
    1
    """
    _check("patch", model)
    switches = {
        "norms": norms, "rope": rope, "mlp": mlp, "embedding": embedding, "loss": loss, "mask": mask
    }  # fmt: skip
    for name, value in switches.items():
        if not isinstance(value, bool):
            got = type(value).__name__
            raise TypeError(f"patch: argument '{name}' must be a bool, got {got}")
    kinds = [kind for kind in _KINDS if switches[kind.part]]
    counts: Counter[tuple[str, str, str | None, str]] = Counter()
    for module in list(model.modules()):
        name = type(module).__name__
        counts.update((name, *outcome) for outcome in _replace_parts(module, kinds))
    return Report([Row(part, name, n, *said) for (name, part, *said), n in counts.items()])


def unpatch(model: nn.Module) -> int:
    """Give every module of the model its own forward and loss back; returns how many were ours.

    Raises:
        RuntimeError: somebody wrapped a forward after :func:`patch`, and calls ours in it. Nothing
            is changed then.
    """
    _check("unpatch", model)
    ours = [(name, module) for name, module in model.named_modules() if patched_class(module)]
    for name, module in ours:
        _refuse_wrapped(name, module)
    for _, module in ours:
        for method in recipes_of(module):
            module.__dict__.pop(method, None)
    count = sum(len(recipes_of(module)) for _, module in ours)
    for _, module in ours:
        uninstall(module)
    return count


def _check(op: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        got = type(model).__name__
        raise TypeError(f"{op}: argument 'model' must be a torch.nn.Module, got {got}")


def _refuse_wrapped(name: str, module: nn.Module) -> None:
    cls, ours = type(module), patched_class(module)
    wrapped = [] if cls is ours else ["class"]
    for method in recipes_of(module):
        held = module.__dict__.get(method)  # a removed wrapper leaves a bound method here
        if held is not None and getattr(held, "__func__", held) is not vars(ours)[method]:
            wrapped.append(method.strip("_"))
    if wrapped:
        raise RuntimeError(
            f"unpatch: the {wrapped[0]} of '{name}' ({cls.__name__}) was wrapped after patch: take "
            "the wrapper off first (accelerate: remove_hook_from_module)"
        )


def _replace_parts(module: nn.Module, kinds: list[_Kind]) -> Iterator[tuple[str, str | None, str]]:
    """For each replaceable part of the module: the new function's name, or why it is left."""
    ours, recipes = patched_class(module), recipes_of(module)
    is_top = type(module) is ours
    if is_top:  # what is found and tried is the module's own
        uninstall(module)
    try:
        for kind in kinds:
            if not kind.found(module):
                continue
            try:
                if kind.method in {*recipes, *module.__dict__}:
                    raise LeftAloneError(f"its {kind.method.strip('_')} is replaced already")
                if ours and not is_top:
                    raise LeftAloneError("its class was wrapped after it was patched")
                name, recipes[kind.method] = kind.replacement(module)
                yield kind.part, name, ""
            except LeftAloneError as reason:
                yield kind.part, None, str(reason)
            except Exception:  # noqa: BLE001 - a stranger's code
                yield kind.part, None, "its own code fails on a small input"
    finally:
        if recipes and (is_top or not ours):
            install(module, recipes)


@dataclass(frozen=True)
class _Kind:
    part: str  # the switch of patch
    found: Callable[[nn.Module], bool]
    replacement: Callable[[nn.Module], tuple[str, Recipe]]
    method: str = "forward"  # what is replaced


_KINDS = (
    _Kind("norms", is_norm, replace_norm),
    _Kind("norms", lambda module: type(module) is nn.LayerNorm, replace_layer_norm),
    _Kind("embedding", is_embedding, replace_embedding),
    _Kind("mlp", is_gated_mlp, replace_gated_mlp),
    _Kind("mlp", has_gated_experts, replace_gate_of_experts, "_apply_gate"),
    _Kind("rope", calls_rotary, replace_rotary),
    _Kind("mask", makes_causal_mask, replace_causal_mask),
    # Where transformers' property looks first.
    _Kind("loss", makes_loss, replace_loss, "_loss_function"),
)
