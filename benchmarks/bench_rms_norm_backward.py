# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm backward, dx and dweight, on a GPU, against a copy of as many bytes and peers.

And with 1 added to the weight, as Gemma trains; rounding before it, as in Llama, takes the same
kernels. And with the gradient of an added residual (add_rms_norm_backward).

python benchmarks/bench_rms_norm_backward.py            every shape
python benchmarks/bench_rms_norm_backward.py --quick    a dozen shapes
"""

from __future__ import annotations

import dataclasses
from typing import Any

import contest
import peers
import torch

import membound


def _formula(
    dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    root = rstd[:, None]
    h, g = x * root, dy * weight
    products = g * h
    dx = root * (g - h * products.mean(-1, keepdim=True))
    terms = root * (g.abs() + h.abs() * products.abs().mean(-1, keepdim=True))
    return ((dx, terms),)


def _ours(a: contest.Arrays) -> object:
    return membound.rms_norm_backward(a.dy, a.x, a.weight, a.rstd, dx=a.dx, dweight=a.dweight)


def _offset_formula(
    dy: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    return _formula(dy, x, rstd, weight + 1)


def _with_offset(a: contest.Arrays) -> object:
    return membound.rms_norm_backward(
        a.dy, a.x, a.weight, a.rstd, weight_offset=1.0, dx=a.dx, dweight=a.dweight
    )


def _add_formula(
    dy: torch.Tensor, x: torch.Tensor, dsum: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    ((dx, terms),) = _formula(dy, x, rstd, weight)
    return ((dx + dsum, terms + dsum.abs()),)


def _with_residual(a: contest.Arrays) -> object:
    return membound.add_rms_norm_backward(
        a.dy, a.dsum, a.x, a.weight, a.rstd, dx=a.dx, dweight=a.dweight
    )


OP = contest.Op(
    name="rms_norm_backward",
    read=("dy", "x"),
    written=("dx",),
    ours=_ours,
    formula=_formula,
    peers=peers.RMS_NORM_BACKWARD,
    sums={"dweight": lambda dy, x, rstd: dy * x * rstd[:, None]},
)

OFFSET = dataclasses.replace(
    OP, variant="_offset", ours=_with_offset, formula=_offset_formula, peers={}
)

ADD = dataclasses.replace(
    OP,
    variant="_add",
    read=("dy", "x", "dsum"),
    ours=_with_residual,
    formula=_add_formula,
    peers={},
    sums={"dweight": lambda dy, x, _, rstd: dy * x * rstd[:, None]},
)

if __name__ == "__main__":
    contest.main([OP, OFFSET, ADD], __doc__.splitlines()[0])
