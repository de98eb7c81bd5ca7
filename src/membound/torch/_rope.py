# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding of q and k, and of q alone."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import Operator, contiguous_like
from membound.torch._schemas import SCHEMAS

TABLES = SCHEMAS["rope"]["saves"]
OPTIONS = SCHEMAS["rope"]["options"]


# Sequence starts have two slots, a number and a tensor, under one name; at most one is given.
_KEYWORDS = (*TABLES, "seqlen_offsets", *list(OPTIONS)[1:])
_DEFAULTS = (None,) * len(TABLES) + (0, "bshd", False, None, 0, None, False, 1.0, False, False)


def keywords_of(tables: Any, options: Any) -> dict[str, Any]:
    """The call's tables and options as keywords of the extension, without defaults to save 2 us."""
    given = zip(_KEYWORDS, (*tables, *options), _DEFAULTS, strict=True)
    return {name: value for name, value, default in given if value is not default}


def split_offsets(seqlen_offsets: Any) -> tuple[int, Any]:
    """Split sequence starts into a number and a tensor, for which operators have one slot each."""
    if seqlen_offsets is None:
        return 0, None
    if isinstance(seqlen_offsets, torch.Tensor):
        return 0, seqlen_offsets
    return seqlen_offsets, None


def refuse_table_gradients(op: str, cos: Any, sin: Any, freqs: Any = None) -> None:
    """Raise for tables that require grad: rope computes no gradient of them."""
    for table in (cos, sin, freqs):
        if table is not None and table.requires_grad:
            name = "cos" if table is cos else "sin" if table is sin else "freqs"
            raise RuntimeError(
                f"{op}: argument '{name}' requires grad, and its gradient is not computed: pass "
                f"{name}.detach(); frequencies can be learned (freqs= of rope)"
            )


def strategies(
    tensors: dict[str, Any], options: dict[str, Any], results: Any
) -> list[dict[str, int]]:
    """Shard along heads, or along sequences with their positions."""
    layout = options["layout"]
    names = [name for name in ("q", "k") if name in tensors]
    if any(tensors[name].ndim != len(layout) for name in names):
        return []
    per_head = [n for n in ("q_weight", "k_weight") if getattr(tensors.get(n), "ndim", 0) == 2]
    found = [dict.fromkeys((*names, *results), layout.index("h")) | dict.fromkeys(per_head, 0)]
    tables = [tensors.get(name) for name in ("cos", "sin")]
    if "b" in layout and all(table is None or table.ndim == 2 for table in tables):
        way = dict.fromkeys((*names, *results), layout.index("b"))
        ids = tensors.get("position_ids")
        if ids is not None and ids.ndim > 1:
            way["position_ids"] = ids.ndim - 2
        if tensors.get("seqlen_offsets") is not None:
            way["seqlen_offsets"] = 0
        found.append(way)
    return found


def _operator(*, keyed: bool, learned: bool) -> Operator:
    """An operator with or without k, and with or without the gradient of the frequencies."""
    rotated = ("q", "k") if keyed else ("q",)
    count = len(rotated)

    def forward(*arguments):
        tables, options = arguments[count : count + len(TABLES)], arguments[count + len(TABLES) :]
        found = _core.rope(*arguments[:count], **keywords_of(tables, options))
        return found if keyed else (found,)

    def backward(grads, saved, options, _):
        tables, read = saved[: len(TABLES)], saved[len(TABLES) :]
        keywords = keywords_of(tables, options) | dict(zip(rotated, read, strict=False))
        found = _core.rope_backward(*grads, **keywords)
        return found if keyed or learned else (found,)

    tensors: dict[str, str | None] = {name: f"d{name}" for name in rotated}
    tensors |= {f"{name}?": None for name in TABLES}
    gradients = {f"d{name}": f"d{name}_out" for name in rotated}
    if learned:
        tensors["freqs?"] = "dfreqs"
        gradients["dfreqs"] = "freqs"
    results = [f"{name}_out" for name in rotated]
    return Operator(
        name="rope" + ("" if keyed else "_q") + ("_learned" if learned else ""),
        tensors=tensors,
        options=OPTIONS,
        results=dict.fromkeys(results, True),
        forward=forward,
        shapes=lambda *arguments: tuple(map(contiguous_like, arguments[:count])),
        saves=(*TABLES, *(rotated if learned else ())),
        gradients=gradients,
        backward=backward,
        rows=(),
        strategies=lambda tensors, options: strategies(tensors, options, results),
    )


_ROPE = {
    (keyed, learned): _operator(keyed=keyed, learned=learned)
    for keyed in (True, False)
    for learned in (True, False)
}


@differentiable("out", "k_out")
def rope(
    q, k=None, cos=None, sin=None, *, freqs=None, position_ids=None, seqlen_offsets=None,
    cu_seqlens=None, layout="bshd", interleaved=False, rotary_dim=None, rotary_offset=0,
    sections=None, interleaved_sections=False, attention_scaling=1.0, inverse=False,
    validate=False,
):  # fmt: skip
    """Rotary embedding of q and k: :func:`membound.rope` with its gradient.

    Recorded for the gradient: the tables and positions, neither q nor k; where ``freqs`` requires
    grad, q and k too. cos and sin get no gradient.

    >>> import torch
    >>> q = torch.tensor([1.0, 0.0]).reshape(1, 1, 1, 2).requires_grad_()
    >>> out = rope(q, None, torch.tensor([[0.6]]), torch.tensor([[0.8]]))
    >>> torch.autograd.grad(out[..., 1].sum(), q)[0].flatten().tolist()  # doctest: +ELLIPSIS
    [0.8..., 0.6...]
    """
    refuse_table_gradients("rope", cos, sin)
    operator = _ROPE[k is not None, freqs is not None and freqs.requires_grad]
    start, seqlen_offsets = split_offsets(seqlen_offsets)
    tables = (cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens)
    options = (
        start, layout, interleaved, rotary_dim, rotary_offset, sections, interleaved_sections,
        attention_scaling, inverse, validate,
    )  # fmt: skip
    return operator(*((q,) if k is None else (q, k)), *tables, *options)
