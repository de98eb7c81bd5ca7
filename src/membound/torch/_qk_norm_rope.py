# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm of heads with rotary embedding, of q and k and of q alone."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import Operator, contiguous_like, define_without_gradient, rows_like
from membound.torch._recording import refuse_gradients
from membound.torch._rope import OPTIONS as ROPE_OPTIONS
from membound.torch._rope import (
    TABLES,
    keywords_of,
    refuse_table_gradients,
    split_offsets,
    strategies,
)
from membound.torch._schemas import SCHEMAS

_OPTIONS = SCHEMAS["qk_norm_rope"]["options"]
_NORM_OPTIONS = [name for name in _OPTIONS if name not in ROPE_OPTIONS]


def _keywords(tables: Any, options: Any) -> dict[str, Any]:
    norm, rope = options[: len(_NORM_OPTIONS)], options[len(_NORM_OPTIONS) :]
    return dict(zip(_NORM_OPTIONS, norm, strict=True)) | keywords_of(tables, rope)


def _operator(*, keyed: bool) -> Operator:
    heads = ("q", "k") if keyed else ("q",)
    count = len(heads)
    weights = tuple(f"{name}_weight" for name in heads)

    def whole(found: Any) -> Any:
        """Values for q and k; None for those not given."""
        return tuple(found) if keyed else (found[0], None)

    def forward(*arguments):
        q_and_k = whole(arguments[:count])
        of_weights = whole(arguments[count : 2 * count])
        tables, options = (
            arguments[2 * count :][: len(TABLES)],
            arguments[2 * count :][len(TABLES) :],
        )
        return _core.qk_norm_rope(
            *q_and_k, *of_weights, **_keywords(tables, options), return_rstd=True
        )

    def backward(grads, saved, options, wanted):
        read, of_weights, tables, rstds = (
            saved[:count],
            saved[count : 2 * count],
            saved[2 * count : -count],
            saved[-count:],
        )
        q_rstd, k_rstd = whole(rstds)
        dq, dk, dq_weight, dk_weight = _core.qk_norm_rope_backward(
            *whole(grads), *whole(read), *whole(of_weights), q_rstd=q_rstd, k_rstd=k_rstd,
            need_dweight=any(wanted[count:]), **_keywords(tables, options),
        )  # fmt: skip
        return (dq, dk, dq_weight, dk_weight) if keyed else (dq, dq_weight)

    tensors: dict[str, str | None] = {name: f"d{name}" for name in heads}
    tensors |= {f"{name}?": f"d{name}" for name in weights}
    tensors |= {f"{name}?": None for name in TABLES}
    rstds = tuple(f"{name}_rstd" for name in heads)
    outs = tuple(f"{name}_out" for name in heads)
    return Operator(
        name="qk_norm_rope" if keyed else "q_norm_rope",
        tensors=tensors,
        options=_OPTIONS,
        results=dict.fromkeys(outs, True) | dict.fromkeys(rstds, False),
        forward=forward,
        shapes=lambda *arguments: (
            *map(contiguous_like, arguments[:count]),
            *map(rows_like, arguments[:count]),
        ),
        saves=(*heads, *weights, *TABLES, *rstds),
        gradients={f"d{name}": name for name in (*heads, *weights)},
        backward=backward,
        rows=(),
        strategies=lambda tensors, options: strategies(tensors, options, (*outs, *rstds)),
    )


_OF_Q_AND_K, _OF_Q = _operator(keyed=True), _operator(keyed=False)


_CACHED_TENSORS = ("q", "k", "q_weight", "k_weight", "v", "key_cache", "value_cache",
                   "slot_mapping")  # fmt: skip


def _cached(*arguments):
    """Call the extension with caches for k and v."""
    tensors, rest = arguments[: len(_CACHED_TENSORS)], arguments[len(_CACHED_TENSORS) :]
    keywords = _keywords(rest[: len(TABLES)], rest[len(TABLES) :])
    return (_core.qk_norm_rope(**dict(zip(_CACHED_TENSORS, tensors, strict=True)), **keywords),)


_CACHED = define_without_gradient(
    "qk_norm_rope_cached",
    "(Tensor q, Tensor k, Tensor? q_weight, Tensor? k_weight, Tensor? v, Tensor(a!) key_cache, "
    "Tensor(b!)? value_cache, Tensor slot_mapping, "
    + ", ".join(
        [f"Tensor? {name}" for name in TABLES]
        + [f"{kind} {name}" for name, kind in _OPTIONS.items()]
    )
    + ") -> Tensor",
    _cached,
    lambda q, *_: (contiguous_like(q),),
)


@differentiable("out", "k_out")
def qk_norm_rope(
    q, k=None, q_weight=None, k_weight=None, cos=None, sin=None, *, eps=1e-6, weight_offset=0.0,
    rounding="once", freqs=None, position_ids=None, seqlen_offsets=None, cu_seqlens=None,
    layout="bshd", interleaved=False, rotary_dim=None, rotary_offset=0, sections=None,
    interleaved_sections=False, attention_scaling=1.0, inverse=False, validate=False, v=None,
    key_cache=None, value_cache=None, slot_mapping=None,
):  # fmt: skip
    """RMSNorm of each head, then rope: :func:`membound.qk_norm_rope` with its gradient.

    Recorded for the gradient: q, k, weights, tables and 4 bytes for each head of a token. Tables
    and frequencies get no gradient, and a call that writes caches has none.

    >>> import torch
    >>> q = torch.tensor([3.0, 4.0]).reshape(1, 1, 1, 2)
    >>> out = qk_norm_rope(q, None, None, None, torch.ones(1, 1), torch.zeros(1, 1), eps=0.0)
    >>> out.square().mean().item()  # doctest: +ELLIPSIS
    1.0...
    """
    if key_cache is None:
        refuse_table_gradients("qk_norm_rope", cos, sin, freqs)
    start, seqlen_offsets = split_offsets(seqlen_offsets)
    tables = (cos, sin, freqs, position_ids, seqlen_offsets, cu_seqlens)
    options = (
        eps, weight_offset, rounding, start, layout, interleaved, rotary_dim, rotary_offset,
        sections, interleaved_sections, attention_scaling, inverse, validate,
    )  # fmt: skip
    if not (v is None and key_cache is None and value_cache is None and slot_mapping is None):
        for name, one in (("k", k), ("key_cache", key_cache), ("slot_mapping", slot_mapping)):
            if one is None:
                raise ValueError(
                    f"qk_norm_rope: argument '{name}' must be given with a cache, got None"
                )
        tensors = (q, k, q_weight, k_weight, v, key_cache, value_cache, slot_mapping, *tables)
        refuse_gradients(
            "qk_norm_rope", dict(zip((*_CACHED_TENSORS, *TABLES), tensors, strict=True))
        )
        return _CACHED(*tensors, *options)
    if k is None:
        if isinstance(k_weight, torch.Tensor):
            raise ValueError("qk_norm_rope: argument 'k_weight' must be None without 'k'")
        return _OF_Q(q, q_weight, *tables, *options)
    return _OF_Q_AND_K(q, k, q_weight, k_weight, *tables, *options)
