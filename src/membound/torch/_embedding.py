# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Embedding lookup with the gradients of both tables."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.arrays import dtype_name
from membound.torch._functions import differentiable
from membound.torch._operators import operator
from membound.torch._schemas import SCHEMAS
from membound.torch._vocab_shards import has_sharded_vocab, sharded_embedding

_OPTIONS = SCHEMAS["embedding"]["options"]


def _forward(ids, weight, position_ids, position_weight, *options):
    keywords = dict(zip(_OPTIONS, options, strict=True))
    return (
        _core.embedding(
            ids, weight, position_ids=position_ids, position_weight=position_weight, **keywords
        ),
    )


def _shapes(ids, weight, _position_ids, _position_weight, *options):
    name = options[-1]
    dtype = weight.dtype if name is None else getattr(torch, name)
    return (weight.new_empty((*ids.shape, weight.shape[1]), dtype=dtype),)


def _backward(grads, saved, options, wanted):
    ids, weight, position_ids, position_weight = saved
    padding_idx, scale, vocab_start, _, _ = options
    (dy,) = grads
    dweight = dpositions = None
    if wanted[0]:
        dweight = _core.embedding_backward(
            dy, ids, weight.shape[0], padding_idx=padding_idx, scale=scale,
            vocab_start=vocab_start, dtype=dtype_name(weight.dtype),
        )  # fmt: skip
    if wanted[1]:
        position_rows = _position_rows(ids, position_ids, vocab_start, weight.shape[0])
        dpositions = _core.embedding_backward(
            dy, position_rows, position_weight.shape[0], dtype=dtype_name(position_weight.dtype)
        )
    return dweight, dpositions


def _position_rows(ids: Any, position_ids: Any, vocab_start: int, vocab: int) -> Any:
    """The row of the position table that each token read; -1 for tokens of other ranks."""
    if position_ids is None:
        position_ids = torch.arange(ids.shape[-1], device=ids.device).expand(ids.shape)
    inside = (ids >= vocab_start) & (ids < vocab_start + vocab)
    return position_ids.where(inside, -1)


def _strategies(tensors, _):
    """Shard along any axis of ids except one along which positions are counted."""
    ids, position_ids = tensors["ids"], tensors.get("position_ids")
    counted = position_ids is None and tensors.get("position_weight") is not None
    names = ("ids", "out") if position_ids is None else ("ids", "position_ids", "out")
    return [dict.fromkeys(names, axis) for axis in range(ids.ndim - counted)]


_EMBEDDING = operator(
    "embedding", _backward, forward=_forward, shapes=_shapes, strategies=_strategies,
    columns=sharded_embedding, takes_columns=lambda _, weight, *__: has_sharded_vocab(weight),
)  # fmt: skip


@differentiable("out")
def embedding(
    ids, weight, *, position_ids=None, position_weight=None, padding_idx=None, scale=1.0,
    vocab_start=0, validate=False, dtype=None,
):  # fmt: skip
    """The rows of a table that ids name: :func:`membound.embedding` with its gradients.

    Dense, the same bits on every run (:func:`membound.embedding_backward`), for both tables.
    Recorded: the ids, and the tables for their shapes.

    >>> import torch
    >>> weight = torch.zeros(3, 2, requires_grad=True)
    >>> embedding(torch.tensor([2, 0, 2]), weight, scale=2.0).sum().backward()
    >>> weight.grad.tolist()
    [[2.0, 2.0], [0.0, 0.0], [4.0, 4.0]]
    """
    name = None if dtype is None else dtype_name(dtype)
    options = (padding_idx, scale, vocab_start, validate, name)
    return _EMBEDDING(ids, weight, position_ids, position_weight, *options)
