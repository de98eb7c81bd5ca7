# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""dx, dz and dweight of RMSNorm with a gate on a GPU, against a copy of as many bytes.

python benchmarks/bench_rms_norm_gated_backward.py            every shape
python benchmarks/bench_rms_norm_gated_backward.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch

import membound


def _formula(
    dy: torch.Tensor, x: torch.Tensor, z: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    root, s = rstd[:, None], torch.sigmoid(z)
    h, g = x * root, dy * z * s * weight
    products = g * h
    dx = root * (g - h * products.mean(-1, keepdim=True))
    terms = root * (g.abs() + h.abs() * products.abs().mean(-1, keepdim=True))
    of_gate = dy * h * weight * s
    size = of_gate.abs() * (1 + z.abs() * (1 - s))
    return (dx, terms), (of_gate * (1 + z * (1 - s)), size)


def _ours(a: contest.Arrays) -> object:
    return membound.rms_norm_gated_backward(
        a.dy, a.x, a.z, a.weight, a.rstd, dx=a.dx, dz=a.dz, dweight=a.dweight
    )


OP = contest.Op(
    name="rms_norm_gated_backward",
    read=("dy", "x", "z"),
    written=("dx", "dz"),
    ours=_ours,
    formula=_formula,
    peers=peers.RMS_NORM_GATED_BACKWARD,
    sums={"dweight": lambda dy, x, z, rstd: dy * z * torch.sigmoid(z) * x * rstd[:, None]},
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
