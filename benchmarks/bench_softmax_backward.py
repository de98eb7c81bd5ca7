# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax_backward on a GPU, against a copy of as many bytes and installed peers.

python benchmarks/bench_softmax_backward.py            every shape
python benchmarks/bench_softmax_backward.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import softmax_peers
import torch

import membound


def _formula(dy: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    products = dy * y
    size = y.abs() * (dy.abs() + products.abs().sum(-1, keepdim=True))
    return ((y * (dy - products.sum(-1, keepdim=True)), size),)


OP = contest.Op(
    name="softmax_backward",
    read=("dy", "y"),
    written=("dx",),
    ours=lambda a: membound.softmax_backward(a.dy, a.y, dx=a.dx),
    formula=_formula,
    peers=softmax_peers.SOFTMAX_BACKWARD,
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
