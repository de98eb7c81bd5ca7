# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding over parts of one tensor, with its gradient: fused qkv and kv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from membound import _core
from membound.torch._recording import dispatch_modes, dynamo_traces, records
from membound.torch._rope import refuse_table_gradients, rope

Parts = Callable[[Any], tuple[list[Any], Any]]  # views to rotate, and the rest or None


def whole(x: Any) -> tuple[list[Any], Any]:
    return [x], None


def q_and_k(num_heads_q: int | None) -> Parts:
    """q and k of ``(..., 3, heads, head_dim)``, or with a count of ``(..., heads, head_dim)``."""

    def parts(qkv: Any) -> tuple[list[Any], Any]:
        if num_heads_q is None:
            return [qkv.select(-3, 0), qkv.select(-3, 1)], qkv.select(-3, 2)
        keys = (qkv.shape[-2] - num_heads_q) // 2
        q, k = qkv.narrow(-2, 0, num_heads_q), qkv.narrow(-2, num_heads_q, keys)
        return [q, k], qkv.narrow(-2, num_heads_q + keys, keys)

    return parts


def k_alone(kv: Any) -> tuple[list[Any], Any]:
    return [kv.select(-3, 0)], kv.select(-3, 1)


def rope_in_place(x: Any, parts: Parts, *tables: dict[str, Any], **options: Any) -> Any:
    """Rotate the parts of x in place and return x: by one table for all, or by one for each."""
    if dynamo_traces() or dispatch_modes():  # graphs compute new results and copy them
        for group, table in _groups(parts(x)[0], tables):
            found = rope(*group, **table, **options)
            for part, result in zip(group, found if len(group) == 2 else (found,), strict=True):
                part.copy_(result)
        return x
    if not records((x,)):
        _rotate(_core.rope, ("out", "k_out"), parts(x)[0], parts(x)[0], tables, options)
        return x
    for table in tables:
        refuse_table_gradients("rope", *(table.get(name) for name in ("cos", "sin", "freqs")))
    return _InPlace.apply(x, parts, tables, options)


def _groups(parts: list[Any], tables: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The parts that one call rotates, and its table."""
    if len(tables) == 1:
        yield parts, tables[0]
    else:
        yield from (([part], table) for part, table in zip(parts, tables, strict=True))


def _rotate(
    function: Any, outputs: Any, read: Any, written: Any, tables: Any, options: Any
) -> None:
    pairs = zip(_groups(read, tables), _groups(written, tables), strict=True)
    for (group, table), (out, _) in pairs:
        given = dict(zip(outputs, out, strict=False))
        function(*group, **table, **given, **options)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, parts, tables, options):
        _rotate(_core.rope, ("out", "k_out"), parts(x)[0], parts(x)[0], tables, options)
        ctx.mark_dirty(x)
        ctx.call = parts, tables, options
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dx):
        parts, tables, options = ctx.call
        out = torch.empty_like(dx, memory_format=torch.contiguous_format)
        (rotated, rest), (into, rest_out) = parts(dx), parts(out)
        _rotate(_core.rope_backward, ("dq_out", "dk_out"), rotated, into, tables, options)
        if rest is not None:
            rest_out.copy_(rest)
        return out, None, None, None


def check_heads(function, qkv, num_heads_q, axes=4):
    """Raise if a fused tensor does not have the given numbers of heads of q, k and v."""
    if qkv.dim() == axes + 1 and num_heads_q is None:
        if qkv.shape[-3] != 3:
            raise ValueError(
                f"{function}: argument 'qkv' must have 3 for q, k and v in its third axis from "
                f"the end, got shape {tuple(qkv.shape)}"
            )
        return
    if qkv.dim() != axes:
        raise ValueError(
            f"{function}: argument 'qkv' must have {axes} axes, or {axes + 1} without "
            f"num_heads_q, got shape {tuple(qkv.shape)}"
        )
    if num_heads_q is None:
        raise ValueError(
            f"{function}: argument 'num_heads_q' must be given for a tensor of {axes} axes, "
            "got None"
        )
    keys = qkv.shape[-2] - num_heads_q
    if keys < 0 or keys % 2:
        raise ValueError(
            f"{function}: argument 'num_heads_q' must leave an even number of the "
            f"{qkv.shape[-2]} heads for k and v, got {num_heads_q}"
        )
