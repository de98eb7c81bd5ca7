# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions with the names and arguments of vLLM's operators: they write over what they read."""

from __future__ import annotations

from membound.torch._rope import rope


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotate query and key in place.

    Args:
        positions: ``(tokens,)`` or ``(batch, seq)``, int32 or int64.
        query: ``(..., heads * head_size)`` or ``(..., heads, head_size)`` with the axes of
            positions in front; its rows may be a slice of a wider tensor.
        key: the same but for the number of heads; None: query alone.
        head_size: elements of a head.
        cos_sin_cache: ``(max_position, rotary_dim)``: all cosines, then all sines.
        is_neox: pairs are halves of the head; False: neighbours.

    >>> import torch
    >>> query = torch.ones(1, 4)
    >>> rotary_embedding(torch.tensor([0]), query, None, 4, torch.tensor([[0.0, 1.0]]), True)
    >>> query.tolist()
    [[-1.0, 1.0, 1.0, 1.0]]
    """
    q, k = (_heads(t, positions, head_size) for t in (query, key))
    rope(
        q, k, cos_sin_cache, None, position_ids=positions.flatten(), layout="thd",
        interleaved=not is_neox, rotary_dim=cos_sin_cache.shape[-1], out=q, k_out=k,
    )  # fmt: skip


def _heads(t, positions, head_size):
    """A view of (tokens, heads, head_size); view() raises where only a copy could have it."""
    if t is None:
        return None
    split = t if t.dim() == positions.dim() + 2 else t.unflatten(-1, (-1, head_size))
    return split.view(positions.numel(), *split.shape[-2:]) if positions.dim() > 1 else split
