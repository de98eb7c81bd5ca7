# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Other libraries' rotary embeddings of q and k, (batch, seq, heads, head_dim), in halves."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from peers import Peer

# A set has q, k, out and k_out, positions (tokens,), cos and sin (seq, head_dim / 2) in float32,
# and cos_twice and sin_twice (1, seq, head_dim) with every angle twice in the dtype of q.


def hugging_face(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Llama's apply_rotary_pos_emb, on (batch, heads, seq, head_dim)."""
    cos, sin = cos[:, None], sin[:, None]

    def rotated(x: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    return rotated(q), rotated(k)


def _heads_first(a: Any, *names: str) -> list[Any]:
    return [getattr(a, name).transpose(1, 2) for name in names]


def _torch(_: Any) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        found = hugging_face(*_heads_first(a, "q", "k"), a.cos_twice, a.sin_twice)
        return tuple(one.transpose(1, 2) for one in found)

    return call


def _compile(_: Any) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    function = torch.compile(hugging_face, dynamic=False)

    def call(a: Any) -> Any:
        found = function(*_heads_first(a, "q", "k"), a.cos_twice, a.sin_twice)
        return tuple(one.transpose(1, 2) for one in found)

    return call


def _liger(_: Any) -> Callable[[Any], Any]:
    turn = importlib.import_module("liger_kernel.ops.rope").rope_forward

    def call(a: Any) -> Any:
        turn(*_heads_first(a, "out", "k_out"), a.cos_twice, a.sin_twice)
        return a.out, a.k_out

    return call


def _quack(_: Any) -> Callable[[Any], Any]:
    turn = importlib.import_module("quack.rotary").apply_rotary_emb
    return lambda a: (turn(a.q, a.cos, a.sin), turn(a.k, a.cos, a.sin))


def _flashinfer(like: Any) -> Callable[[Any], Any]:
    turn = importlib.import_module("flashinfer").apply_rope_with_cos_sin_cache_inplace
    head_dim = like.q.shape[-1]

    def call(a: Any) -> Any:
        q, k = (one.flatten(0, 1).flatten(1) for one in (a.out, a.k_out))
        turn(a.positions, q, k, head_dim, a.cache, is_neox=True)
        return a.out, a.k_out

    return call


ROPE = {
    "torch": Peer("torch", _torch),
    "compile": Peer("torch", _compile),
    "liger": Peer("liger_kernel", _liger, in_place=True),
    "quack": Peer("quack-kernels", _quack),
    "flashinfer": Peer("flashinfer-python", _flashinfer, in_place=True),
}
