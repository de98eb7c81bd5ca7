# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm forward on a GPU, against a copy of the same bytes and installed peers.

python benchmarks/bench_rms_norm.py            every shape, under four minutes on an H200
python benchmarks/bench_rms_norm.py --quick    a dozen shapes, under a minute
"""

from __future__ import annotations

import contest
import peers
import torch
from peers import EPS

import membound


def _formula(x: torch.Tensor, _rstd: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return (x * root * weight,)


OP = contest.Op(
    name="rms_norm",
    read=("x",),
    written=("out",),
    ours=lambda a: membound.rms_norm(a.x, a.weight, eps=EPS, out=a.out),
    formula=_formula,
    peers=peers.RMS_NORM,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
