# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients of silu(gate) * up on a GPU, against a copy of as many bytes and peers.

python benchmarks/bench_gated_activation_backward.py            every shape
python benchmarks/bench_gated_activation_backward.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch

import membound


def _formula(dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[Any, ...]:
    s = torch.sigmoid(gate)
    size = (dy * up).abs() * s * (1 + gate.abs() * (1 - s))
    dup = dy * gate * s
    return (dy * up * s * (1 + gate * (1 - s)), size), (dup, dup.abs())


OP = contest.Op(
    name="gated_activation_backward",
    read=("dy", "gate", "up"),
    written=("dgate", "dup"),
    ours=lambda a: membound.gated_activation_backward(a.dy, a.gate, a.up, dgate=a.dgate, dup=a.dup),
    formula=_formula,
    peers=peers.GATED_ACTIVATION_BACKWARD,
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
