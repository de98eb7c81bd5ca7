# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""soft_cap on a GPU, against a copy of as many bytes and torch.

python benchmarks/bench_soft_cap.py            every shape
python benchmarks/bench_soft_cap.py --quick    a dozen shapes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contest
import torch
from peers import Peer

import membound
from membound._elementwise import OPS

CAP = 30.0


def _capped(x: Any) -> Any:
    return OPS["soft_cap"].formula(torch, x, CAP)


def _torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: _capped(a.x)


def _compile(_: Any) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    compiled = torch.compile(_capped, dynamic=False)
    return lambda a: compiled(a.x)


OP = contest.Op(
    name="soft_cap",
    read=("x",),
    written=("out",),
    ours=lambda a: membound.soft_cap(a.x, CAP, out=a.out),
    formula=lambda x: (_capped(x),),
    peers={"torch": Peer("torch", _torch), "compile": Peer("torch", _compile)},
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
