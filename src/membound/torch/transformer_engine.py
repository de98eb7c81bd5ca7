# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions with the names and arguments of Transformer Engine."""

from __future__ import annotations

from membound.torch._rope import rope


def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", start_positions=None, interleaved=False,
    fused=False,  # noqa: ARG001 - the caller's word for what there is no other of here
    cu_seqlens=None,
):  # fmt: skip
    """Rotate t by a tensor of angles.

    Args:
        t: ``(seq, batch, heads, head_dim)`` for ``"sbhd"``, ``(batch, seq, heads, head_dim)``
            for ``"bshd"``, ``(tokens, heads, head_dim)`` for ``"thd"`` with cu_seqlens.
        freqs: the angles, ``(positions, 1, 1, rotary_dim)`` in float32, each of them twice: one
            half after the other, or as neighbours with ``interleaved``.
        tensor_format: see t.
        start_positions: ``(batch,)`` int32: where sequences start.
        interleaved: pairs are neighbours.
        fused: taken and ignored: the one here always is.
        cu_seqlens: ``(sequences + 1,)`` int32, for ``"thd"``.

    Returns:
        The rotated t. cos and sin stay float32 (float64 for float64); Transformer Engine's unfused
        form rounds them to 16 bits where t has those. In float32 the bits are the same.

    >>> import torch
    >>> t, freqs = torch.ones(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    >>> bool((apply_rotary_pos_emb(t, freqs) == t).all())
    True
    """
    if freqs.dim() != 4 or freqs.shape[1:3] != (1, 1):
        raise ValueError(
            "apply_rotary_pos_emb: argument 'freqs' must have shape (positions, 1, 1, rotary_dim), "
            f"got {tuple(freqs.shape)}"
        )
    angles = freqs[:, 0, 0]
    return rope(
        t, None, angles.cos(), angles.sin(), layout=tensor_format, interleaved=interleaved,
        rotary_dim=angles.shape[-1], seqlen_offsets=start_positions, cu_seqlens=cu_seqlens,
    )  # fmt: skip
