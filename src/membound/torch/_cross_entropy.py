# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of logits, and of a last layer whose logits are never there as a whole."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import Operator, rows_like

_OPTIONS = {
    "ignore_index": "int",
    "label_smoothing": "float",
    "z_loss": "float",
    "softcap": "float?",
    "validate": "bool",
}


def _named(options: Any) -> dict[str, Any]:
    return dict(zip(_OPTIONS, options, strict=True))


_CROSS_ENTROPY = Operator(
    name="cross_entropy",
    tensors={"logits": "dlogits", "labels": None},
    options=_OPTIONS,
    results={"loss": True, "lse": False},
    forward=lambda logits, labels, *options: _core.cross_entropy(
        logits, labels, **_named(options), return_lse=True
    ),
    shapes=lambda logits, *_: (rows_like(logits), rows_like(logits)),
    saves=("logits", "labels", "lse"),
    gradients={"dlogits": "logits"},
    backward=lambda grads, saved, options, _: (
        _core.cross_entropy_backward(*grads, *saved, **_named(options)),
    ),
    rows=("logits", "labels"),
)


@differentiable("out")
def cross_entropy(
    logits, labels, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=None,
    validate=False,
):  # fmt: skip
    """The cross entropy of each row: :func:`membound.cross_entropy` with its gradient.

    Recorded: logits, labels and 4 bytes a row. Where the logits are not needed afterwards, the
    gradient may be had in the same pass and over them: ``dlogits=`` under torch.no_grad().

    >>> import torch
    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).tolist()  # doctest: +ELLIPSIS
    [1.386...]
    """
    return _CROSS_ENTROPY(logits, labels, ignore_index, label_smoothing, z_loss, softcap, validate)


def _product_dtype(x: Any) -> torch.dtype:
    """That of matrix products with x: autocast's, where it is on and x is not float64."""
    kind = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward, piece by piece, and scaled in the backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, labels, chunk_rows, options):
        kind = _product_dtype(x)
        factor, shift = weight.to(kind), bias if bias is None else bias.to(kind)
        needs = ctx.needs_input_grad[:3]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        counted = (labels != options["ignore_index"]).sum()
        share = counted.clamp(min=1).to(wide).reciprocal()
        dx, dweight, dbias = (
            torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
            for t, need in zip((x, weight, bias), needs, strict=True)
        )
        losses = torch.empty(labels.shape, dtype=wide, device=x.device)

        def piece(rows):  # a function, so that its logits are gone before the next are made
            here = x[rows].to(kind)
            logits = torch.nn.functional.linear(here, factor, shift)
            dloss = share.expand(logits.shape[:-1])
            given = {"dlogits": logits, "dloss": dloss} if any(needs) else {}
            _core.cross_entropy(logits, labels[rows], out=losses[rows], **given, **options)
            if dx is not None:
                _write_product(dx[rows], logits, factor)
            if dweight is not None:
                _add_product(dweight, logits.mT, here)
            if dbias is not None:
                dbias.add_(logits.sum(0))

        for first in range(0, len(labels), chunk_rows):
            piece(slice(first, first + chunk_rows))
        ctx.made = dx, dweight, dbias
        return losses.sum() * share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss):
        if ctx.made is None:
            raise RuntimeError(
                "linear_cross_entropy: a second backward: its gradients went out with the first"
            )
        made, ctx.made = ctx.made, None
        # In place: a second gradient of the weight would be the peak of a step's memory.
        return (*(t if t is None else t.mul_(dloss) for t in made), None, None, None)


def _write_product(out: Any, a: Any, b: Any) -> None:
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(total: Any, a: Any, b: Any) -> None:
    """Under autocast the sum stays in its own dtype, at the price of one product's memory."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


@torch._disable_dynamo  # torch.compiler.disable without the import of Dynamo
def linear_cross_entropy(
    x, weight, labels, bias=None, *, chunk_rows=1024, ignore_index=-100, label_smoothing=0.0,
    z_loss=0.0, softcap=None, validate=False,
):  # fmt: skip
    """The mean cross entropy of ``x @ weight.T + bias``, whose logits are never there as a whole.

    The logits of ``chunk_rows`` rows at a time are made, turned into their gradient in place and
    multiplied into those of x and weight (the products are torch's), so that memory holds one chunk
    in place of logits and their gradient: as Liger-Kernel's fused linear cross entropy does. Under
    torch.autocast the products are in its dtype. For eager code: it ends a compiled graph, and
    torch.func does not take it. Second derivatives and a second backward of one result raise.

    Args:
        x: ``(rows, width)``; more axes in front are rows too.
        weight: ``(vocab, width)``.
        labels: int32 or int64, one for each row.
        bias: ``(vocab,)``, or None.
        chunk_rows: how many rows have their logits at one time.
        ignore_index, label_smoothing, z_loss, softcap, validate: as of
            :func:`membound.cross_entropy`: a label that is neither in the vocabulary nor
            ignore_index has a loss of 0 and counts as a row; on the CPU ``validate=True`` raises.

    Returns:
        The sum over rows that count, divided by their number: a tensor without axes in float32
        (float64 for float64). The gradient of weight is summed chunk by chunk in its own dtype.

    >>> import torch
    >>> x, weight = torch.ones(3, 2, requires_grad=True), torch.zeros(4, 2, requires_grad=True)
    >>> loss = linear_cross_entropy(x, weight, torch.tensor([0, 1, -100]))
    >>> loss.item()  # doctest: +ELLIPSIS
    1.386...
    >>> loss.backward()
    >>> weight.grad[2].tolist()
    [0.25, 0.25]
    """
    if chunk_rows < 1:
        raise ValueError(
            f"linear_cross_entropy: argument 'chunk_rows' must be at least 1, got {chunk_rows}"
        )
    if labels.shape != x.shape[:-1]:
        raise ValueError(
            f"linear_cross_entropy: argument 'labels' must have shape {tuple(x.shape[:-1])}, got "
            f"{tuple(labels.shape)}"
        )
    options = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
        "softcap": softcap,
        "validate": validate,
    }
    rows = x.reshape(-1, x.shape[-1])
    return _LinearCrossEntropy.apply(rows, weight, bias, labels.reshape(-1), chunk_rows, options)
