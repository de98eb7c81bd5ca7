# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm to float8_e4m3fn on a GPU, against a copy of the same bytes and peers.

With a dynamic scale for each row, and with one static scale.

python benchmarks/bench_rms_norm_quant.py            every shape
python benchmarks/bench_rms_norm_quant.py --quick    a dozen shapes
"""

from __future__ import annotations

import contest
import peers
import torch
from peers import EPS

import membound

LIMIT = 448.0


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _row_formula(
    x: torch.Tensor, _rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    y = _norm(x, weight)
    return (y / (y.abs().amax(-1, keepdim=True) / LIMIT),)


def _static_formula(
    x: torch.Tensor, _rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return ((_norm(x, weight) / peers.STATIC_SCALE).clamp(-LIMIT, LIMIT),)


def _row(a: contest.Arrays) -> object:
    return membound.rms_norm_quant(a.x, a.weight, eps=EPS, out=a.out, scale_out=a.scale)


def _static(a: contest.Arrays) -> object:
    return membound.rms_norm_quant(a.x, a.weight, eps=EPS, out=a.out, scale=a.static_scale)


OP = contest.Op(
    name="rms_norm_quant",
    read=("x",),
    written=("out",),
    quantised=("out",),
    ours=_row,
    formula=_row_formula,
    peers=peers.RMS_NORM_QUANT,
)

STATIC = contest.Op(
    name="rms_norm_quant",
    variant="_static",
    read=("x",),
    written=("out",),
    quantised=("out",),
    ours=_static,
    formula=_static_formula,
    peers=peers.RMS_NORM_QUANT_STATIC,
)

if __name__ == "__main__":
    contest.main([OP, STATIC], __doc__.splitlines()[0])
