# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of DTensors whose columns are sharded: every rank has a part of each row.

Tensor parallel models need this if they normalise over all heads, which are sharded over ranks
(OLMo 2's q_norm and k_norm). A row's statistics are 8 or 16 bytes; forward and backward take one
all-reduce of them each, and nothing is gathered. The CUDA kernels reduce whole rows themselves, so
RMSNorm launches two of them, and the rest is torch's own ops, each a pass over memory in eager
calls. Saved for the gradient: x, weight and the statistics of rows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

Reduce = Callable[[Any], Any]  # sums a tensor over the ranks that share rows


def has_sharded_columns(x: Any, weight: Any) -> bool:
    """Whether x is a DTensor with sharded columns; never with a weight of several heads."""
    if "torch.distributed.tensor" not in sys.modules or (weight is not None and weight.ndim != 1):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor) and any(_shards_columns(p, x) for p in x.placements)


def _shards_columns(placement: Any, x: Any) -> bool:
    from torch.distributed.tensor import Shard

    return type(placement) is Shard and placement.dim % x.ndim == x.ndim - 1


def sharded_rms_norm(x: Any, weight: Any, *options: Any) -> Any:
    return _sharded_call(_RMSNorm, "rms_norm", x, {"weight": weight}, options)


def sharded_layer_norm(x: Any, weight: Any, bias: Any, *options: Any) -> Any:
    return _sharded_call(_LayerNorm, "layer_norm", x, {"weight": weight, "bias": bias}, options)


def added_norm(norm: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Normalise a sum that was rounded to the dtype of x first (the kernel rounds it after)."""

    def call(x: Any, residual: Any, *rest: Any) -> tuple[Any, Any]:
        total = x + residual
        return norm(total, *rest), total

    return call


def _check(op: str, x: Any, weights: dict[str, Any]) -> None:
    for name, weight in weights.items():
        if weight is None:
            continue
        if type(weight) is not type(x) or weight.device_mesh != x.device_mesh:
            got = type(weight).__name__
            raise TypeError(
                f"{op}: argument '{name}' must be a DTensor on the mesh of 'x', got a {got}"
            )
        if weight.shape != x.shape[-1:]:
            raise ValueError(
                f"{op}: argument '{name}' must have shape ({x.shape[-1]},), got "
                f"{tuple(weight.shape)}"
            )


def _sharded_call(
    function: Any, op: str, x: Any, weights: dict[str, Any], options: tuple[Any, ...]
) -> Any:
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed.tensor import DTensor, Replicate

    _check(op, x, weights)
    mesh = x.device_mesh
    placements = [Replicate() if p.is_partial() else p for p in x.placements]
    x = x.redistribute(placements=placements)
    sharing = [at for at, p in enumerate(placements) if _shards_columns(p, x)]

    def reduce(sums: Any) -> Any:
        for at in sharing:
            sums = collectives.all_reduce(sums, "sum", (mesh, at))
        return sums

    local = x.to_local()
    parts = [_part(weight, x, placements) for weight in weights.values()]
    # With symbolic sizes this also proves to Dynamo that they are equal, as torch 2.11 requires.
    for name, part in zip(weights, parts, strict=True):
        if part is not None and part.shape[-1] != local.shape[-1]:
            raise ValueError(
                f"{op}: argument '{name}' has {part.shape[-1]} columns on this rank where 'x' has "
                f"{local.shape[-1]}"
            )
    out = function.apply(local, *parts, x.shape[-1], reduce, *options)
    strides = [math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim)]
    return DTensor.from_local(
        out, mesh, placements, run_check=False, shape=x.shape, stride=tuple(strides)
    )


def _part(weight: Any, x: Any, placements: list[Any]) -> Any:
    """The weights of this rank's columns; their gradients stay sharded, or are partial sums.

    placements: those of x, passed in because Dynamo of torch 2.11 traces x.placements untyped.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    if weight is None:
        return None
    of_columns = [_shards_columns(p, x) for p in placements]
    rows = [Partial() if p.is_shard() else Replicate() for p in placements]
    if list(weight.placements) == [Shard(0) if here else Replicate() for here in of_columns]:
        grads = [Shard(0) if here else p for here, p in zip(of_columns, rows, strict=True)]
        return weight.to_local(grad_placements=grads)
    whole = weight
    if not all(p.is_replicate() for p in weight.placements):
        whole = weight.redistribute(placements=[Replicate()] * len(rows))
    here = _local_columns(x.shape[-1], x.device_mesh, of_columns)
    return whole.to_local(grad_placements=rows).narrow(0, *here)


def _local_columns(cols: int, mesh: Any, shared: list[bool]) -> tuple[int, int]:
    """The start and count of this rank's columns, split as torch.chunk splits them.

    shared: whether each mesh axis shards the columns.
    """
    start, count = 0, cols
    for at, is_shared in enumerate(shared):
        if is_shared:
            chunk = -(-count // mesh.size(at))
            before = min(chunk * mesh.get_local_rank(at), count)
            start, count = start + before, min(chunk, count - before)
    return start, count


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, cols, reduce, eps, weight_offset, rounding):
        count = x.shape[-1]
        if count:
            _, rstd = torch.ops.membound.rms_norm_forward(x, None, 0.0, 0.0, "once")
            squares = count * rstd.double().pow(-2)
        else:  # more ranks than columns
            squares = x.new_zeros(x.shape[:-1], dtype=torch.float64)
        rstd = (reduce(squares) / cols + eps).rsqrt().to(_wide(x.dtype))
        ctx.save_for_backward(x, weight, rstd)
        ctx.options = cols, reduce, weight_offset
        if rounding == "once" or weight is None:
            return _scaled(x, rstd, weight, weight_offset)
        wide = _effective_weight(weight, weight_offset, rstd)
        return (_scaled(x, rstd, None, 0.0) * wide).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x, weight, rstd), (cols, reduce, weight_offset) = ctx.saved_tensors, ctx.options
        wide, rstd = rstd.dtype, rstd.unsqueeze(-1)
        factor = _effective_weight(weight, weight_offset, rstd)
        terms = x.to(wide, copy=True).mul_(dy)
        along = reduce(_dot(terms, factor)) / cols
        dx = dweight = None
        if ctx.needs_input_grad[1]:
            dweight = _sum_rows(terms, rstd).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            dx = terms.copy_(dy).mul_(factor).sub_(x * (rstd.square() * along))
            dx = dx.mul_(rstd).to(x.dtype)
        return dx, dweight, None, None, None, None, None


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, cols, reduce, eps, weight_offset):
        mean, rstd = (one.to(_wide(x.dtype)) for one in _moments(x, cols, reduce, eps))
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.options = cols, reduce, weight_offset
        out = torch.sub(x, mean).mul_(rstd).mul_(_effective_weight(weight, weight_offset, rstd))
        return (out if bias is None else out.add_(bias)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        cols, reduce, weight_offset = ctx.options
        factor, slopes = _effective_weight(weight, weight_offset, rstd), dy.to(rstd.dtype)
        normed = torch.sub(x, mean).mul_(rstd)
        terms = normed * slopes
        sums = torch.stack((_dot(slopes, factor), _dot(terms, factor)))
        level, along = reduce(sums) / cols
        dx = dweight = dbias = None
        one = torch.ones_like(rstd)
        if ctx.needs_input_grad[1]:
            dweight = _sum_rows(terms, one).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = _sum_rows(slopes, one).to(bias.dtype)
        if ctx.needs_input_grad[0]:
            slopes = (
                dy.to(rstd.dtype, copy=True)
                .mul_(factor)
                .sub_(level)
                .sub_(normed.mul_(along))
                .mul_(rstd)
            )
            dx = slopes.to(x.dtype)
        return dx, dweight, dbias, None, None, None, None


def _moments(x: Any, cols: int, reduce: Reduce, eps: float) -> tuple[Any, Any]:
    """Mean and rstd of whole rows in float64, where a mean of 10^6 standard deviations is safe."""
    count = x.shape[-1]
    if count:
        _, *found = torch.ops.membound.layer_norm_forward(x, None, None, 0.0, 0.0)
        mean, rstd = (one.double().unsqueeze(-1) for one in found)
        sums = count * torch.stack((mean, rstd.pow(-2) + mean.square()))
    else:
        sums = x.new_zeros((2, *x.shape[:-1], 1), dtype=torch.float64)
    mean, squares = reduce(sums) / cols
    return mean, ((squares - mean.square()).clamp(min=0) + eps).rsqrt()


def _scaled(x: Any, rstd: Any, weight: Any, weight_offset: float) -> Any:
    """``x * rstd * weight`` in one pass, as the gradient of the norm of zeros."""
    if x.numel() == 0:
        return torch.empty_like(x)
    zeros = x.new_zeros(x.shape[-1]).expand(x.shape)
    options = 0.0, weight_offset, "once", [True, False]
    return torch.ops.membound.rms_norm_backward(x, zeros, weight, rstd, *options)[0]


def _effective_weight(weight: Any, weight_offset: float, like: Any) -> Any:
    """weight + weight_offset in the accumulator's dtype; without a weight the offset, or 1 if 0."""
    if weight is None:
        return like.new_full((), weight_offset or 1.0)
    return weight.to(like.dtype) + weight_offset


def _dot(terms: Any, factor: Any) -> Any:
    """The weighted sum of each row's terms."""
    if factor.ndim == 0:
        return terms.sum(-1, keepdim=True) * factor
    return terms.matmul(factor).unsqueeze(-1)


def _sum_rows(terms: Any, factors: Any) -> Any:
    """The sum over rows, each times its factor."""
    return factors.flatten() @ terms.reshape(factors.numel(), terms.shape[-1])
