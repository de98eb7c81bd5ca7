# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""silu(gate) * up to float8_e4m3fn on a GPU, against a copy of the same bytes and peers.

With a dynamic scale for each row, and with one static scale.

python benchmarks/bench_gated_activation_quant.py            every shape
python benchmarks/bench_gated_activation_quant.py --quick    a dozen shapes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contest
import peers
import torch
from peers import Peer

import membound

LIMIT = 448.0


def _row_formula(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.nn.functional.silu(gate) * up
    return (y / (y.abs().amax(-1, keepdim=True) / LIMIT),)


def _static_formula(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.nn.functional.silu(gate) * up
    return ((y / peers.STATIC_SCALE).clamp(-LIMIT, LIMIT),)


def _row(a: contest.Arrays) -> object:
    return membound.gated_activation_quant(a.gate, a.up, out=a.out, scale_out=a.scale)


def _static(a: contest.Arrays) -> object:
    return membound.gated_activation_quant(a.gate, a.up, out=a.out, scale=a.static_scale)


def _by_rows(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.nn.functional.silu(gate.float()) * up.float()
    scale = y.abs().amax(-1, keepdim=True) / LIMIT
    return (y / scale).to(torch.float8_e4m3fn), scale


def _by_one(gate: torch.Tensor, up: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.silu(gate.float()) * up.float()
    return (y / scale).clamp(-LIMIT, LIMIT).to(torch.float8_e4m3fn)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def _row_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(_by_rows)
    return lambda a: compiled(a.gate, a.up)


def _static_compile(_: Any) -> Callable[[Any], Any]:
    compiled = _compiled(_by_one)
    return lambda a: compiled(a.gate, a.up, a.static_scale)


OP = contest.Op(
    name="gated_activation_quant",
    read=("gate", "up"),
    written=("out",),
    quantised=("out",),
    ours=_row,
    formula=_row_formula,
    peers={
        "torch": Peer("torch", lambda _: lambda a: _by_rows(a.gate, a.up)),
        "compile": Peer("torch", _row_compile),
    },
    parameters=(),
    normalises=False,
)

STATIC = contest.Op(
    name="gated_activation_quant",
    variant="_static",
    read=("gate", "up"),
    written=("out",),
    quantised=("out",),
    ours=_static,
    formula=_static_formula,
    peers={
        "torch": Peer("torch", lambda _: lambda a: _by_one(a.gate, a.up, a.static_scale)),
        "compile": Peer("torch", _static_compile),
    },
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main([OP, STATIC], __doc__.splitlines()[0])
