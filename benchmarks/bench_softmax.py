# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""softmax on a GPU, against a copy of as many bytes and installed peers.

python benchmarks/bench_softmax.py            every shape
python benchmarks/bench_softmax.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import softmax_peers
import torch

import membound


def _formula(x: torch.Tensor) -> tuple[Any, ...]:
    y = torch.softmax(x, -1)
    return ((y, 4 * y),)  # differences of logits are rounded


OP = contest.Op(
    name="softmax",
    read=("x",),
    written=("out",),
    ours=lambda a: membound.softmax(a.x, out=a.out),
    formula=_formula,
    peers=softmax_peers.SOFTMAX,
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
