# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""cross_entropy with its gradient on a GPU, against a copy of as many bytes, and peers.

python benchmarks/bench_cross_entropy.py            every shape
python benchmarks/bench_cross_entropy.py --quick    a dozen shapes
"""

from __future__ import annotations

import importlib
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
    if not hasattr(a, "labels"):  # created at the first call
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
    return ((found, 8 * torch.softmax(logits, -1) + found.abs()),)  # lse and differences round


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


def _quack(_: Any) -> Callable[[Any], Any]:
    function = importlib.import_module("quack.cross_entropy").cross_entropy_fwd
    return lambda a: function(a.logits, a.labels, return_dx=True)[1]


def _liger(like: Any) -> Callable[[Any], Any]:
    """Liger-Kernel's kernel, without the surrounding checks that synchronise."""
    module = importlib.import_module("liger_kernel.ops.cross_entropy")
    rows, cols = like.logits.shape
    block = min(module.MAX_FUSED_SIZE, 1 << (cols - 1).bit_length())
    loss = torch.empty(rows, device=like.logits.device, dtype=like.logits.dtype)

    def call(a: Any) -> Any:
        module.liger_cross_entropy_kernel[(rows,)](
            X_ptr=a.dlogits, X_stride=a.dlogits.stride(0), Y_ptr=a.labels, Y_stride=1,
            weight_ptr=None, loss_ptr=loss, z_loss_ptr=None, loss_stride=1,
            token_accuracy_ptr=None, token_accuracy_stride=0, predicted_tokens_ptr=None,
            predicted_tokens_stride=0, n_cols=cols, n_non_ignore=rows,
            sum_non_ignore_weight=rows, weight_sum=0.0, ignore_index=-100, lse_square_scale=0.0,
            label_smoothing=0.0, reduction="sum", softcap=None, RETURN_Z_LOSS=False,
            RETURN_TOKEN_ACCURACY=False, RETURN_PREDICTED_TOKENS=False, BLOCK_SIZE=block,
            HAS_WEIGHT=False, HAS_SOFTCAPPING=False, HAS_GRADIENTS=True, num_warps=32,
        )  # fmt: skip
        return a.dlogits

    return call


OP = contest.Op(
    name="cross_entropy",
    read=("logits",),
    written=("dlogits",),
    ours=_ours,
    formula=_formula,
    peers={
        "torch": Peer("torch", _torch),
        "compile": Peer("torch", _compile),
        "quack": Peer("quack-kernels", _quack),
        "liger": Peer("liger_kernel", _liger, in_place=True),
    },
    parameters=(),
    normalises=False,
)

if __name__ == "__main__":
    contest.main(OP, __doc__.splitlines()[0])
