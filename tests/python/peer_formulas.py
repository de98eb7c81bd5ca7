# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""float64 formulas of other libraries' functions, and the cases that call them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

Case = Callable[..., Iterator[tuple[torch.Tensor, torch.Tensor]]]
CASES: dict[str, Case] = {}  # "<table>.<name>" -> pairs of got, expected


def case(*names):
    """Register a function of the function or class under test."""

    def register(function):
        for name in names:
            assert name not in CASES
            CASES[name] = function
        return function

    return register


def values(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + 7 * len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def rms(x, weight=None, eps=1e-6, offset=0.0):
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return y if weight is None else y * (weight + offset)


def layer(x, weight=None, bias=None, eps=1e-6, offset=0.0):
    centred = x - x.mean(-1, keepdim=True)
    y = rms(centred, weight, eps, offset)
    return y if bias is None else y + bias


def silu(x, alpha=1.0):
    return x / (1 + (-alpha * x).exp())


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2


def halves(act, x):
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up


def gpt_oss(gate, up, alpha=1.702, limit=7.0, offset=1.0):
    return silu(gate.clamp(max=limit), alpha) * (up.clamp(-limit, limit) + offset)


def probabilities(x):
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def losses(logits, labels, ignore=-100, smoothing=0.0, z=0.0, softcap=None, weight=None):
    """The losses of rows, and the weight of each in a mean."""
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    lse = logits.logsumexp(-1)
    counts = (labels != ignore).double()
    at = labels.clamp(min=0)
    picked = logits.gather(-1, at[..., None])[..., 0]
    weight = torch.ones(logits.shape[-1]).double() if weight is None else weight
    counts = counts * weight[at]
    loss = (1 - smoothing) * weight[at] * (lse - picked)
    loss = loss + smoothing * (weight * (lse[..., None] - logits)).mean(-1)
    return (loss + z * lse.square()) * (labels != ignore), counts


def reduced(found, reduction="mean"):
    loss, counts = found
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / counts.sum()}[reduction]


def angles(positions, dim, theta=1e4, factor=1.0):
    """(..., dim / 2) angles of positions."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    return positions[..., None].double() / (factor * theta**exponents)


def rotate(x, cos, sin, interleaved=False, inverse=False):
    """Rotate the first columns of (..., heads, head_dim) by (..., dim / 2) of each token."""
    cos, sin = cos[..., None, :], -sin[..., None, :] if inverse else sin[..., None, :]
    dim = 2 * cos.shape[-1]
    head, rest = x[..., :dim], x[..., dim:]
    if interleaved:
        a, b = head[..., ::2], head[..., 1::2]
        pair = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = head.chunk(2, dim=-1)
        pair = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((pair, rest), dim=-1)


def rotate_by(x, at, interleaved=False):
    """Rotate by the angles of each token."""
    return rotate(x, at.cos(), at.sin(), interleaved)


def unbound(f, **given):
    """Arguments except those that a test has bound already."""
    bound = getattr(f, "keywords", {})
    return {name: value for name, value in given.items() if name not in bound}
