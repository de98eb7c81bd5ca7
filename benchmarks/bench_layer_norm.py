# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm forward on a GPU, against a copy of the same bytes and installed peers.

python benchmarks/bench_layer_norm.py            every shape
python benchmarks/bench_layer_norm.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch
from peers import EPS

import membound


def _formula(
    x: torch.Tensor,
    _mean: torch.Tensor,
    _rstd: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> tuple[Any, ...]:
    mean = x.mean(-1, keepdim=True)
    apart = x - mean
    apart = apart - apart.mean(-1, keepdim=True)  # the rounding error of the mean
    scale = torch.rsqrt(apart.square().mean(-1, keepdim=True) + EPS) * weight
    around = apart.abs().mean(-1, keepdim=True) + mean.abs()
    return ((apart * scale + bias, (apart.abs() + around) * scale.abs() + bias.abs()),)


OP = contest.Op(
    name="layer_norm",
    read=("x",),
    written=("out",),
    ours=lambda a: membound.layer_norm(a.x, a.weight, a.bias, eps=EPS, out=a.out),
    formula=_formula,
    peers=peers.LAYER_NORM,
    parameters=("weight", "bias"),
    centred=True,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
