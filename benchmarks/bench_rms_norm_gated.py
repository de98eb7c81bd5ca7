# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm with a gate on a GPU, against a copy of as many bytes and installed peers.

python benchmarks/bench_rms_norm_gated.py            every shape
python benchmarks/bench_rms_norm_gated.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch
from peers import EPS

import membound


def _formula(
    x: torch.Tensor, z: torch.Tensor, _rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight
    out = out * torch.nn.functional.silu(z)
    return ((out, out.abs()),)  # the gate adds roundings


OP = contest.Op(
    name="rms_norm_gated",
    read=("x", "z"),
    written=("out",),
    ours=lambda a: membound.rms_norm_gated(a.x, a.z, a.weight, eps=EPS, out=a.out),
    formula=_formula,
    peers=peers.RMS_NORM_GATED,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
