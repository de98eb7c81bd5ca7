# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy with its gradient on a GPU beside one copy of as many bytes, and torch.

python benchmarks/bench_cross_entropy.py            every shape
python benchmarks/bench_cross_entropy.py --quick    a dozen shapes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contest
import torch
from peers import Peer

import membound


def _column(cols: int) -> int:
    """The label of every row."""
    return cols // 2


def _ours(a: Any) -> Any:
    if not hasattr(a, "labels"):  # made at the first call
        rows, cols = a.logits.shape
        a.labels = torch.full((rows,), _column(cols), device=a.logits.device)
        kind = torch.float64 if a.logits.dtype == torch.float64 else torch.float32
        a.loss = torch.empty(rows, device=a.logits.device, dtype=kind)
    return membound.cross_entropy(a.logits, a.labels, out=a.loss, dlogits=a.dlogits)


def _gradient(logits: torch.Tensor, column: int) -> torch.Tensor:
    y = torch.softmax(logits, -1)
    return y - (torch.arange(y.shape[-1], device=y.device) == column).to(y.dtype)


def _formula(logits: torch.Tensor) -> tuple[Any, ...]:
    found = _gradient(logits, _column(logits.shape[-1]))
    return ((found, 8 * torch.softmax(logits, -1) + found.abs()),)  # lse and distances are rounded


def _both(logits: torch.Tensor, column: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = logits if logits.dtype == torch.float64 else logits.float()
    loss = torch.logsumexp(x, -1) - x[:, column]
    return loss, _gradient(x, column).to(logits.dtype)


def _torch(_: Any) -> Callable[[Any], Any]:
    return lambda a: _both(a.logits, _column(a.logits.shape[-1]))[1]


def _compile(_: Any) -> Callable[[Any], Any]:
    torch._dynamo.reset()
    function = torch.compile(_both, dynamic=False)
    return lambda a: function(a.logits, _column(a.logits.shape[-1]))[1]


OP = contest.Op(
    name="cross_entropy",
    read=("logits",),
    written=("dlogits",),
    ours=_ours,
    formula=_formula,
    peers={"torch": Peer("torch", _torch), "compile": Peer("torch", _compile)},
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
