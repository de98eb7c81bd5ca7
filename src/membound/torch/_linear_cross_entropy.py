# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The cross entropy of a last layer whose logits are never materialised as a whole."""

from __future__ import annotations

import torch
from torch import library

from membound import _core
from membound.torch._adapters import adapter
from membound.torch._cross_entropy import label_weights
from membound.torch._functions import is_plain_call, one_call
from membound.torch._last_layer import (
    CHUNK_ROWS,
    OPTIONS,
    ROW_LOSSES,
    LastLayer,
    check_last_layer,
    product_dtype,
)
from membound.torch._operators import LIBRARY, PLAIN, contiguous_like, define
from membound.torch._recording import dynamo_traces, records, refuse_gradients
from membound.torch._vocab_shards import has_sharded_vocab, sharded_row_losses

REDUCTIONS = "mean", "sum", "none"


def _loss_and_gradients(
    x, weight, bias, labels, class_weight, wanted, chunk_rows, reduction, *given
):
    """The loss, and the gradients of x, weight and bias that are wanted, made in the same pass."""
    options = dict(zip(OPTIONS, given, strict=True))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    share = torch.ones((), dtype=wide, device=x.device)
    if reduction == "mean":
        counted = label_weights(labels, class_weight, options["ignore_index"], len(weight))
        share = counted.sum(dtype=wide).reciprocal()
    layer, targets = LastLayer(x, weight, bias, chunk_rows), labels.reshape(-1)
    layer.make_gradients(wanted)
    losses = torch.empty(targets.shape, dtype=wide, device=x.device)

    def piece(rows):  # a function, so that its logits are freed before the next are made
        logits = layer.logits(rows)
        dloss = share.expand(logits.shape[:-1])
        given = {"dlogits": logits, "dloss": dloss} if any(wanted) else {}
        _core.cross_entropy(
            logits, targets[rows], class_weight, out=losses[rows], **given, **options
        )
        layer.add_gradients(rows, logits)

    for rows in layer.chunks():
        piece(rows)
    return losses.sum() * share, layer.gradients


class _LinearCrossEntropy(torch.autograd.Function):
    """Eager calls: the backward scales the gradients that the forward made, in place."""

    @staticmethod
    def forward(ctx, x, weight, bias, *rest):
        wanted = ctx.needs_input_grad[:3]
        labels, class_weight, *options = rest
        loss, ctx.made = _loss_and_gradients(
            x, weight, bias, labels, class_weight, wanted, *options
        )
        ctx.others = len(rest)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dloss):
        if ctx.made is None:
            raise RuntimeError(
                "linear_cross_entropy: a second backward: its gradients went out with the first"
            )
        made, ctx.made = ctx.made, None
        # In place: a second gradient of the weight would be the peak of a step's memory.
        return (*(t if t is None else t.mul_(dloss) for t in made), *[None] * ctx.others)


# --- the same as an operator, for compiled code ---

_SCHEMA = ", ".join((
    "Tensor x", "Tensor weight", "Tensor? bias", "Tensor labels", "Tensor? class_weight",
    "bool[] wanted", "int chunk_rows", "str reduction",
    *(f"{kind} {name}" for name, kind in OPTIONS.items()),
))  # fmt: skip


def _operator(x, *given):
    loss, made = _loss_and_gradients(x, *given)
    return loss, *(x.new_empty(0) if t is None else t for t in made)


def _fake(x, weight, bias, *rest):
    wanted = rest[2]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    made = (
        contiguous_like(t) if want else x.new_empty(0)
        for t, want in zip((x, weight, bias), wanted, strict=True)
    )
    return x.new_empty((), dtype=wide), *made


def _keep(ctx, inputs, output):
    _, *made = output
    ctx.save_for_backward(*made)
    ctx.wanted, ctx.others = inputs[5], len(inputs) - 3
    ctx.mark_non_differentiable(*made)


@torch.autograd.function.once_differentiable
def _scale(ctx, dloss, *_):
    made = zip(ctx.saved_tensors, ctx.wanted, strict=True)
    return *(t * dloss if want else None for t, want in made), *[None] * ctx.others


define("linear_cross_entropy", f"({_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor)", _operator, _fake)
library.register_autograd(
    "membound::linear_cross_entropy", _scale, setup_context=_keep, lib=LIBRARY
)


@one_call
@adapter()
def linear_cross_entropy(
    x, weight, labels, bias=None, *, class_weight=None, chunk_rows=CHUNK_ROWS, ignore_index=-100,
    label_smoothing=0.0, z_loss=0.0, softcap=None, reduction="mean", validate=False,
):  # fmt: skip
    """The mean cross entropy of ``x @ weight.T + bias``, without materialising all logits.

    The logits of ``chunk_rows`` rows at a time are made, turned into their gradient in place and
    multiplied into those of x and weight (the products are torch's), so that memory holds one chunk
    in place of logits and their gradient: as Liger-Kernel's fused linear cross entropy does. Under
    torch.autocast the products are in its dtype. Second derivatives raise, and in eager code a
    second backward of one mean or sum.

    Args:
        x: ``(rows, width)``; more axes in front are rows too.
        weight: ``(vocab, width)``; a DTensor may have its vocabulary sharded, for one all-reduce of
            12 bytes a row and rank.
        labels: int32 or int64, one for each row.
        bias: ``(vocab,)``, or None.
        class_weight: ``(vocab,)``, what :func:`membound.cross_entropy` calls ``weight``; or None.
        chunk_rows: how many rows have their logits at one time.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The gradient of each row's own loss is not
            known until the backward, which makes the logits a second time, again in chunks.
        ignore_index, label_smoothing, z_loss, softcap, validate: as of
            :func:`membound.cross_entropy`: a label that is neither in the vocabulary nor
            ignore_index makes the loss NaN; on the CPU ``validate=True`` raises.

    Returns:
        The sum over rows that count, for the mean divided by that of their labels' class weights
        (NaN where no row counts): a tensor without axes in float32 (float64 for float64). With
        ``reduction="none"`` a loss for each row, of the shape of labels. The gradient of weight is
        summed chunk by chunk in its own dtype.

    >>> import torch
    >>> x, weight = torch.ones(3, 2, requires_grad=True), torch.zeros(4, 2, requires_grad=True)
    >>> loss = linear_cross_entropy(x, weight, torch.tensor([0, 1, -100]))
    >>> loss.item()  # doctest: +ELLIPSIS
    1.386...
    >>> loss.backward()
    >>> weight.grad[2].tolist()
    [0.25, 0.25]
    """
    op = "linear_cross_entropy"
    check_last_layer(op, x, weight, labels, bias, class_weight, chunk_rows)
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{op}: argument 'reduction' must be 'mean', 'sum' or 'none', got {reduction!r}"
        )
    refuse_gradients(op, {"class_weight": class_weight})
    options = ignore_index, label_smoothing, z_loss, softcap, validate
    x = x.to(product_dtype(x))
    tensors = x, weight, bias, labels, class_weight
    if reduction != "none":
        rest = chunk_rows, reduction, *options
        if is_plain_call(tensors):
            return _LinearCrossEntropy.apply(*tensors, *rest)
        if dynamo_traces() and all(t is None or type(t) in PLAIN for t in tensors):
            wanted = [t is not None and records((t,)) for t in tensors[:3]]
            return torch.ops.membound.linear_cross_entropy.default(*tensors, wanted, *rest)[0]
    if has_sharded_vocab(weight):
        losses, _, labels, class_weight = sharded_row_losses(
            op, *tensors, chunk_rows, *options, 1.0, False
        )
    else:
        losses, _ = ROW_LOSSES(*tensors, chunk_rows, *options, 1.0, False)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "mean":
        total = total / label_weights(labels, class_weight, ignore_index, len(weight)).sum()
    return total
