# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Residual addition with RMSNorm on a GPU, against a copy of the same bytes and peers.

python benchmarks/bench_add_rms_norm.py            every shape
python benchmarks/bench_add_rms_norm.py --quick    a dozen shapes
"""

from __future__ import annotations

import contest
import peers
import torch
from peers import EPS

import membound


def _formula(
    x: torch.Tensor,
    residual: torch.Tensor,
    _rstd: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    total = x + residual
    root = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS)
    # The sum is rounded once before it is normalised: an error term of its own magnitude.
    return (total * root * weight, (total * root * weight).abs()), total


def _ours(a: contest.Arrays) -> object:
    return membound.add_rms_norm(
        a.x, a.residual, a.weight, eps=EPS, out=a.out, residual_out=a.residual_out
    )


OP = contest.Op(
    name="add_rms_norm",
    read=("x", "residual"),
    written=("out", "residual_out"),
    ours=_ours,
    formula=_formula,
    peers=peers.ADD_RMS_NORM,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
