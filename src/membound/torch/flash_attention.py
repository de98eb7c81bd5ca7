# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions with the names and arguments of flash-attention."""

from __future__ import annotations

import torch

from membound.torch._rope import rope


def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None,
    max_seqlen=None,  # noqa: ARG001 - only callers need it
):  # fmt: skip
    """Rotate the first elements of each head of x.

    Args:
        x: ``(batch, seq, heads, head_dim)``, or with cu_seqlens ``(tokens, heads, head_dim)``.
        cos: ``(positions, rotary_dim / 2)``.
        sin: the same.
        interleaved: pairs are neighbours (GPT-J); False: halves (GPT-NeoX).
        inplace: write over x. Only where no gradient of x is recorded.
        seqlen_offsets: where sequences start: a number, or ``(batch,)`` integers.
        cu_seqlens: ``(sequences + 1,)`` int32.
        max_seqlen: taken and ignored: the launch does not depend on it.

    Returns:
        The rotated tensor, x itself with ``inplace``.

    >>> import torch
    >>> x = torch.ones(1, 1, 1, 4)
    >>> apply_rotary_emb(x, torch.zeros(1, 1), torch.ones(1, 1)).flatten().tolist()
    [-1.0, 1.0, 1.0, 1.0]
    """
    offsets = seqlen_offsets
    if not isinstance(offsets, torch.Tensor) and not offsets:
        offsets = None
    return rope(
        x, None, cos, sin, layout="bshd" if cu_seqlens is None else "thd", interleaved=interleaved,
        rotary_dim=2 * cos.shape[-1], seqlen_offsets=offsets, cu_seqlens=cu_seqlens,
        out=x if inplace else None,
    )  # fmt: skip
