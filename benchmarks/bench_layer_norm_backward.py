# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm backward, dx, dweight and dbias, on a GPU, against a copy of as many bytes and peers.

python benchmarks/bench_layer_norm_backward.py            every shape
python benchmarks/bench_layer_norm_backward.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch

import membound


def _formula(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[Any, ...]:
    root = rstd[:, None]
    h, g = (x - mean[:, None]) * root, dy * weight
    products = g * h
    dx = root * (g - g.mean(-1, keepdim=True) - h * products.mean(-1, keepdim=True))
    terms = g.abs() + g.abs().mean(-1, keepdim=True)
    terms = terms + h.abs() * products.abs().mean(-1, keepdim=True)
    return ((dx, root * terms),)


def _ours(a: contest.Arrays) -> object:
    return membound.layer_norm_backward(
        a.dy, a.x, a.weight, a.mean, a.rstd, dx=a.dx, dweight=a.dweight, dbias=a.dbias
    )


OP = contest.Op(
    name="layer_norm_backward",
    read=("dy", "x"),
    written=("dx",),
    ours=_ours,
    formula=_formula,
    peers=peers.LAYER_NORM_BACKWARD,
    centred=True,
    sums={
        "dweight": lambda dy, x, mean, rstd: dy * (x - mean[:, None]) * rstd[:, None],
        "dbias": lambda dy, *_: dy,
    },
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
