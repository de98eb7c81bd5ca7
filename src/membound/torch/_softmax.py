# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax over the last axis, with masks."""

from __future__ import annotations

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import operator


def _backward(grads, saved, options, wanted):
    (dy,), (y, mask) = grads, saved
    dx = _core.softmax_backward(dy, y, scale=options[0]) if wanted[0] else None
    if not wanted[1]:
        return dx, None
    of_sum = _core.softmax_backward(dy, y)
    return dx, of_sum.sum_to_size(mask.shape).to(mask.dtype)


def _strategies(tensors, options):
    """Shard along any axis of rows except queries under a causal offset, which counts them."""
    x, mask = tensors["x"], tensors.get("mask")
    found = []
    for axis in range(x.ndim - (1 if options["causal_offset"] is None else 2)):
        way = {"x": axis, "out": axis}
        of_mask = -1 if mask is None else axis - (x.ndim - mask.ndim)
        if of_mask >= 0 and mask.shape[of_mask] != 1:
            way["mask"] = of_mask
        found.append(way)
    return found


_SOFTMAX = operator("softmax", _backward, strategies=_strategies)


@differentiable("out")
def softmax(x, mask=None, *, scale=1.0, causal_offset=None):
    """Softmax of ``scale * x + mask``: :func:`membound.softmax` with its gradients.

    Recorded: the result, and the mask for its shape; not x.

    >>> import torch
    >>> softmax(torch.zeros(1, 4)).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return _SOFTMAX(x, mask, scale, causal_offset)
