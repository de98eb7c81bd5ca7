# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Swap the memory-bound parts of a model for membound's, in place.

What a module is shows in its parts (a weight and an eps; a gate, an up and a down projection), what
it computes in a trial on a few random rows: it is replaced only where one of our forms gives its
result. So no list of models is kept, and a module that does something else is left alone. What
takes the place of a forward is a function of ours, bound by functools.partial: that is pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from membound._table import render
from membound.torch._patch_loss import makes_loss, replace_loss
from membound.torch._patch_mask import makes_causal_mask, replace_causal_mask
from membound.torch._patch_mlp import is_gated_mlp, replace_gated_mlp
from membound.torch._patch_norm import (
    is_rms_norm,
    replace_embedding,
    replace_layer_norm,
    replace_rms_norm,
)
from membound.torch._patch_rotary import calls_rotary, replace_rotary
from membound.torch._patch_trial import LeftAloneError

_PATCHED = "_membound_patched"  # the attributes of a module that are ours, with their names


@dataclass(frozen=True)
class Row:
    """What became of the modules of one class."""

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
        cells = [(r.module, str(r.count), r.replaced_by or "-", r.why_left) for r in self.rows]
        return render(("module", "count", "now", "left because"), cells)


def patch(model: nn.Module) -> Report:
    """Replace norms, embeddings, gated MLPs, the rotary function, masks and the loss, in place.

    Found by structure, not by name: RMSNorm and LayerNorm modules, embeddings, MLPs with gate, up
    and down projections (apart or fused), attention modules that call ``apply_rotary_pos_emb``,
    models that call transformers' ``create_causal_mask`` (given no mask, positions or cache they
    make none for SDPA, which is causal by itself), and the ``loss_function`` of a language model
    (computed from its logits as they are, where the model's own makes float32 copies of them).
    Weights, hooks, state dicts and classes stay; only ``forward`` or the loss of the found modules
    changes, on this model alone. Its copies are patched too, and so is what a pickle of the whole
    model loads (with the version of membound that wrote it). :func:`unpatch` undoes it. Patch
    before torch.compile.

    Returns:
        A table of what was replaced, by what, and what was left and why.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    >>> print(patch(model))
    module     count  now         left because
    ---------  -----  ----------  ------------
    LayerNorm      1  layer_norm
    >>> unpatch(model)
    1
    """
    outcomes: dict[tuple[str, str | None, str], int] = {}
    for module in list(model.modules()):
        for kind in _KINDS:
            if kind.found(module):
                replaced, reason = _try(kind, module)
                key = type(module).__name__, replaced, reason
                outcomes[key] = outcomes.get(key, 0) + 1
    return Report([Row(name, count, now, why) for (name, now, why), count in outcomes.items()])


def unpatch(model: nn.Module) -> int:
    """Give every module of the model its own forward and loss back; returns how many were ours."""
    count = 0
    for module in model.modules():
        for attribute in module.__dict__.pop(_PATCHED, {}):
            del module.__dict__[attribute]
            count += 1
    return count


def _try(kind: _Kind, module: nn.Module) -> tuple[str | None, str]:
    try:
        if kind.attribute in module.__dict__:
            raise LeftAloneError(f"its {kind.attribute.strip('_')} is replaced already")
        name, function = kind.replacement(module)
    except LeftAloneError as reason:
        return None, str(reason)
    except Exception as error:  # noqa: BLE001 - a stranger's code: no error leaves a model half done
        return None, f"its trial raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    module.__dict__[kind.attribute] = function
    module.__dict__.setdefault(_PATCHED, {})[kind.attribute] = name
    return name, ""


@dataclass(frozen=True)
class _Kind:
    found: Callable[[nn.Module], bool]
    replacement: Callable[[nn.Module], tuple[str, Callable[..., Any]]]
    attribute: str = "forward"  # what is replaced


_KINDS = (
    _Kind(is_rms_norm, replace_rms_norm),
    _Kind(lambda module: type(module) is nn.LayerNorm, replace_layer_norm),
    _Kind(lambda module: type(module) is nn.Embedding, replace_embedding),
    _Kind(is_gated_mlp, replace_gated_mlp),
    _Kind(calls_rotary, replace_rotary),
    _Kind(makes_causal_mask, replace_causal_mask),
    _Kind(makes_loss, replace_loss, "_loss_function"),  # where transformers' property looks first
)
