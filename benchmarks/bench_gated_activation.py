# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""silu(gate) * up on a GPU, against a copy of as many bytes and installed peers.

python benchmarks/bench_gated_activation.py            every shape
python benchmarks/bench_gated_activation.py --quick    a dozen shapes
"""

from __future__ import annotations

from typing import Any

import contest
import peers
import torch

import membound


def _formula(gate: torch.Tensor, up: torch.Tensor) -> tuple[Any, ...]:
    out = torch.nn.functional.silu(gate) * up
    return ((out, out.abs()),)


OP = contest.Op(
    name="gated_activation",
    read=("gate", "up"),
    written=("out",),
    ours=lambda a: membound.gated_activation(a.gate, a.up, out=a.out),
    formula=_formula,
    peers=peers.GATED_ACTIVATION,
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
