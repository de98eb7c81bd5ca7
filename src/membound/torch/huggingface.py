# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Functions with the names and arguments of Hugging Face's transformers."""

from __future__ import annotations

from membound.torch._rope import rope


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    """Rotate q and k as the models' own function does, in one launch and with one rounding.

    Args:
        q: ``(batch, heads, seq, head_dim)`` with ``unsqueeze_dim=1``, ``(batch, seq, heads,
            head_dim)`` with 2; with any strides.
        k: the same but for the number of heads.
        cos: ``(batch, seq, rotary_dim)`` with every angle twice, as the models' rotary embedding
            returns it; a batch of 1 serves all. Elements of a head past rotary_dim are copied.
        sin: the same for the sines.
        unsqueeze_dim: where the axis of heads is.

    Returns:
        The rotated q and k. In float32 the bits of transformers' function; in 16 bits closer to the
        exact result, as products are not rounded.

    >>> import torch
    >>> q, k = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
    >>> cos, sin = torch.zeros(1, 3, 8), torch.ones(1, 3, 8)
    >>> apply_rotary_pos_emb(q, k, cos, sin)[1][0, 0, 0].tolist()
    [-1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]
    """
    layouts = {1: "bhsd", 2: "bshd"}
    if unsqueeze_dim not in layouts:
        raise ValueError(
            f"apply_rotary_pos_emb: argument 'unsqueeze_dim' must be 1 or 2, got {unsqueeze_dim!r}"
        )
    return rope(q, k, cos, sin, layout=layouts[unsqueeze_dim], rotary_dim=cos.shape[-1])
