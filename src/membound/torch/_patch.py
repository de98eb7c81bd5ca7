# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Swap the memory-bound parts of a model for membound's, in place.

What a module is shows in its parts (a weight and an eps; a gate, an up and a down projection), what
it computes in a trial on a few random rows: it is replaced only where one of our forms gives its
result. So no list of models is kept, and a module that does something else is left alone.
"""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from membound._table import render
from membound.torch import huggingface
from membound.torch._embedding import embedding
from membound.torch._gated_activation import gated_activation
from membound.torch._layer_norm import layer_norm
from membound.torch._patch_loss import LOSSES, makes_loss, same_loss
from membound.torch._rms_norm import rms_norm

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


class _LeftAloneError(Exception):
    """Why a module keeps its own forward."""


def patch(model: nn.Module) -> Report:
    """Replace norms, embeddings, gated MLPs, the rotary function and the loss, in place.

    Found by structure, not by name: RMSNorm and LayerNorm modules, embeddings, MLPs with gate, up
    and down projections (apart or fused), attention modules that call ``apply_rotary_pos_emb``, and
    the ``loss_function`` of a language model (computed from its logits as they are, where the
    model's own makes float32 copies of them). Weights, hooks, state dicts and classes stay; only
    ``forward`` or the loss of the found modules changes, on this model alone. :func:`unpatch`
    undoes it. Patch before torch.compile.

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
            raise _LeftAloneError(f"its {kind.attribute.strip('_')} is replaced already")
        name, function = kind.replacement(module)
    except _LeftAloneError as reason:
        return None, str(reason)
    takes_module = kind.attribute == "forward"
    module.__dict__[kind.attribute] = (
        types.MethodType(function, module) if takes_module else function
    )
    module.__dict__.setdefault(_PATCHED, {})[kind.attribute] = name
    return name, ""


@dataclass(frozen=True)
class _Kind:
    found: Callable[[nn.Module], bool]
    replacement: Callable[[nn.Module], tuple[str, Callable[..., Any]]]
    attribute: str = "forward"  # what is replaced


def _trial(
    module: nn.Module, candidates: Iterator[tuple[str, Callable[..., Any]]], cols: int
) -> Any:
    """The first candidate that gives the module's result, bit for bit or nearly so.

    In bfloat16 and with weights drawn at random, whatever the model's are: where a result is
    rounded shows neither in float32 nor with the weights of 1 that training starts from.
    """
    generator = torch.Generator().manual_seed(0)
    stand_in = copy.copy(module)
    stand_in.__dict__["_parameters"] = {
        name: nn.Parameter(
            torch.randn(p.shape, generator=generator).bfloat16(), requires_grad=False
        )
        for name, p in module.named_parameters(recurse=False)
    }
    x = torch.randn(4, cols, generator=generator).bfloat16()
    near = None
    with torch.no_grad():
        wanted = type(module).forward(stand_in, x)
        for name, forward in candidates:
            got = forward(stand_in, x)
            if got.dtype == wanted.dtype and torch.equal(got, wanted):
                return name, forward
            if near is None and _close(got, wanted):
                near = name, forward
    if near is None:
        raise _LeftAloneError("it computes something else")
    return near


def _close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    if got.dtype != wanted.dtype or not wanted.is_floating_point():
        return False
    unit = torch.finfo(wanted.dtype).eps
    return torch.allclose(got.double(), wanted.double(), rtol=4 * unit, atol=4 * unit)


def _takes_one_tensor(module: nn.Module) -> bool:
    parameters = inspect.signature(type(module).forward).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.name != "self"]
    return len([p for p in required if p.kind is p.POSITIONAL_OR_KEYWORD]) == 1


# --- norms ---


def _eps(module: nn.Module) -> Any:
    for name in ("variance_epsilon", "eps", "epsilon"):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def _own_tensors(module: nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters(recurse=False) if p is not None}


def _is_rms_norm(module: nn.Module) -> bool:
    return (
        "RMSNorm" in type(module).__name__
        and _own_tensors(module) <= {"weight"}
        and not list(module.children())
    )


def _replace_rms_norm(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 1:
        raise _LeftAloneError("it has no weight of one axis")
    if not _takes_one_tensor(module):
        raise _LeftAloneError("its forward takes more than one tensor")
    if not isinstance(_eps(module), float):
        raise _LeftAloneError("it names no eps")
    return _trial(module, _rms_norm_forms(module), weight.shape[0])


def _rms_norm_forms(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    eps = _eps(module)
    for offset in (0.0, 1.0):
        for rounding in ("before_weight", "once"):
            # Without a lookup of options in each call: decoding makes dozens of them a token.
            def forward(self, hidden_states, _offset=offset, _rounding=rounding):
                return rms_norm(
                    hidden_states, self.weight, eps=eps, weight_offset=_offset, rounding=_rounding
                )

            named = "rms_norm" + (", weight_offset=1" if offset else "")
            yield f"{named}, rounding={rounding!r}", forward


def _layer_norm_forward(self, input):  # noqa: A002 - torch.nn's name
    return layer_norm(input, self.weight, self.bias, eps=self.eps)


def _replace_layer_norm(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    if len(module.normalized_shape) != 1:
        raise _LeftAloneError("it normalises over several axes")
    return "layer_norm", _layer_norm_forward


# --- embeddings ---


def _embedding_forward(self, input):  # noqa: A002 - torch.nn's name
    # torch raises for ids outside of the table too; on a GPU it aborts the context, we give zeros.
    on_cpu = input.device.type == "cpu"
    return embedding(input, self.weight, padding_idx=self.padding_idx, validate=on_cpu)


def _replace_embedding(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    for name in ("max_norm", "sparse", "scale_grad_by_freq"):
        if getattr(module, name):
            raise _LeftAloneError(f"it has {name}")
    return "embedding", _embedding_forward


# --- gated MLPs ---

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
        raise _LeftAloneError(f"its activation is {type(act).__name__}")
    raise _LeftAloneError("it names no activation")


def _is_gated_mlp(module: nn.Module) -> bool:
    parts = {name for name, _ in module.named_children()}
    return any(layers <= parts for layers in _MLP_FORWARDS)


def _forward_gate_up_down(kind):
    def forward(self, x):
        return self.down_proj(gated_activation(self.gate_proj(x), self.up_proj(x), kind=kind))

    return forward


def _forward_packed_down(kind):
    def forward(self, hidden_states):
        return self.down_proj(gated_activation(self.gate_up_proj(hidden_states), kind=kind))

    return forward


def _forward_wi_wo(kind):
    def forward(self, hidden_states):
        return self.Wo(self.drop(gated_activation(self.Wi(hidden_states), kind=kind)))

    return forward


_MLP_FORWARDS = {
    frozenset({"gate_proj", "up_proj", "down_proj"}): _forward_gate_up_down,
    frozenset({"gate_up_proj", "down_proj"}): _forward_packed_down,
    frozenset({"Wi", "Wo", "drop"}): _forward_wi_wo,
}


def _replace_gated_mlp(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    kind = _activation(module)
    if not _takes_one_tensor(module):
        raise _LeftAloneError("its forward takes more than one tensor")
    parts = {name for name, _ in module.named_children()}
    layers = next(layers for layers in _MLP_FORWARDS if layers <= parts)
    first = next(child for name, child in module.named_children() if name in layers)
    if not isinstance(first, nn.Linear):
        raise _LeftAloneError(f"its first projection is {type(first).__name__}")
    forward = _MLP_FORWARDS[layers](kind)
    was_training = module.training
    module.train(False)  # dropout has no place in a trial
    try:
        return _mlp_trial(module, kind, forward, first.in_features)
    finally:
        module.train(was_training)


def _mlp_trial(module: nn.Module, kind: str, forward: Any, cols: int) -> Any:
    """A product of matrices carries one rounding into many results: looser than a norm's trial."""
    weight = next(module.parameters())
    if weight.device.type == "meta":
        raise _LeftAloneError("its weights are on the meta device")
    x = torch.randn(2, cols, generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        wanted, got = type(module).forward(module, x), forward(module, x)
    scale = wanted.abs().max().item()
    if not (got - wanted).abs().max().item() <= 16 * torch.finfo(x.dtype).eps * scale:
        raise _LeftAloneError("it computes something else")
    return f"gated_activation, kind={kind!r}", forward


# --- the rotary function ---

_ROTARY = "apply_rotary_pos_emb"


def _calls_rotary(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and _ROTARY in code.co_names


def _replace_rotary(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    forward = type(module).forward
    theirs = forward.__globals__.get(_ROTARY)
    if hasattr(forward, "__wrapped__") or theirs is None:
        raise _LeftAloneError("its forward is wrapped in another function")
    _check_rotary(theirs)
    # The same code over the same globals but for one name, so that no other model changes.
    scope = {**forward.__globals__, _ROTARY: huggingface.apply_rotary_pos_emb}
    ours = types.FunctionType(
        forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__
    )
    ours.__kwdefaults__ = forward.__kwdefaults__
    return "rope", ours


def _check_rotary(theirs: Callable[..., Any]) -> None:
    names = list(inspect.signature(theirs).parameters)
    if names[:5] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        raise _LeftAloneError(f"its {_ROTARY} takes other arguments")
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, 3, 8, generator=generator) for heads in (4, 2))
    half = torch.randn(1, 3, 4, generator=generator)
    cos, sin = (torch.cat((t, t), -1) for t in (half, half.flip(-1)))
    wanted = theirs(q, k, cos, sin)
    if not all(map(_close, huggingface.apply_rotary_pos_emb(q, k, cos, sin), wanted)):
        raise _LeftAloneError(f"its {_ROTARY} computes something else")


# --- the loss ---


def _replace_loss(module: nn.Module) -> tuple[str, Callable[..., Any]]:
    for name, loss in LOSSES.items():
        if same_loss(module.loss_function, loss):
            return name, loss
    raise _LeftAloneError("its loss is another")


_KINDS = (
    _Kind(_is_rms_norm, _replace_rms_norm),
    _Kind(lambda module: type(module) is nn.LayerNorm, _replace_layer_norm),
    _Kind(lambda module: type(module) is nn.Embedding, _replace_embedding),
    _Kind(_is_gated_mlp, _replace_gated_mlp),
    _Kind(_calls_rotary, _replace_rotary),
    _Kind(makes_loss, _replace_loss, "_loss_function"),  # where transformers' property looks first
)
