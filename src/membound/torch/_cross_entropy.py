# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of logits, and of a last layer whose logits are never materialised as a whole."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import differentiable, one_call
from membound.torch._operators import (
    check_tensor,
    contiguous_like,
    define_without_gradient,
    operator,
    rows_like,
)
from membound.torch._recording import refuse_gradients
from membound.torch._schemas import SCHEMAS

_OPTIONS = SCHEMAS["cross_entropy"]["options"]


def _named(options: Any) -> dict[str, Any]:
    return dict(zip(_OPTIONS, options, strict=True))


_CROSS_ENTROPY = operator(
    "cross_entropy",
    lambda grads, saved, options, _: (
        _core.cross_entropy_backward(*grads, *saved, **_named(options)),
    ),
    lambda _: {"return_lse": True},
)

# Additional results without a gradient: the z loss of rows, and predictions.
_auxiliary_results = define_without_gradient(
    "cross_entropy_beside",
    f"(Tensor logits, Tensor labels, Tensor? weight, "
    f"{', '.join(f'{kind} {name}' for name, kind in _OPTIONS.items())}) -> (Tensor, Tensor)",
    lambda logits, labels, weight, *options: _core.cross_entropy(
        logits, labels, weight, **_named(options), return_z_loss=True, return_predictions=True
    )[1:],
    lambda logits, labels, *_: (rows_like(logits), contiguous_like(labels)),
)


def label_weights(labels, weight, ignore_index, vocab):
    """Per label: 1 or its class's weight; 0 if ignored, NaN if it is not a column."""
    outside = (labels < 0) | (labels >= vocab)
    found = 1.0 if weight is None else weight[torch.where(outside, 0, labels)]
    found = torch.where(outside, float("nan"), found)
    return torch.where(labels == ignore_index, 0.0, found)


@differentiable("out")
def cross_entropy(
    logits, labels, weight=None, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    softcap=None, reduction="none", validate=False, return_z_loss=False, return_predictions=False,
):  # fmt: skip
    """The cross entropy of each row: :func:`membound.cross_entropy` with its gradient.

    Recorded: logits, labels, weight and 8 bytes a row. Where the logits are not needed afterwards,
    the gradient may be had in the same pass and over them: ``dlogits=`` under torch.no_grad(). The
    z loss and the predictions that are returned have no gradient, and take a pass of their own.

    >>> import torch
    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).tolist()  # doctest: +ELLIPSIS
    [1.386...]
    """
    refuse_gradients("cross_entropy", {"weight": weight})
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(
            "cross_entropy: argument 'reduction' must be 'none', 'sum' or 'mean', got "
            f"{reduction!r}"
        )
    options = ignore_index, label_smoothing, z_loss, softcap, validate
    found = [_CROSS_ENTROPY(logits, labels, weight, *options)]
    if return_z_loss or return_predictions:
        z_losses, predictions = _auxiliary_results(logits.detach(), labels, weight, *options)
        found += [z_losses] if return_z_loss else []
    if reduction != "none":
        found = [one.sum() for one in found]
    if reduction == "mean":
        weights = label_weights(labels, weight, ignore_index, logits.shape[-1])
        total = weights.sum(dtype=found[0].dtype)
        found = [one / total for one in found]
    if return_predictions:
        found.append(predictions)
    return found[0] if len(found) == 1 else tuple(found)


def _product_dtype(x: Any) -> torch.dtype:
    """The dtype of matrix products with x: autocast's if it is on and x is not float64."""
    kind = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward, chunk by chunk, and scales them in the backward."""

    @staticmethod
    def forward(ctx, x, weight, bias, labels, class_weight, chunk_rows, reduction, options):
        kind = _product_dtype(x)
        factor, shift = weight.to(kind), bias if bias is None else bias.to(kind)
        needs = ctx.needs_input_grad[:3]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        share = torch.ones((), dtype=wide, device=x.device)
        if reduction == "mean":
            counted = label_weights(labels, class_weight, options["ignore_index"], len(weight))
            share = counted.sum(dtype=wide).reciprocal()
        dx, dweight, dbias = (
            torch.zeros_like(t, memory_format=torch.contiguous_format) if need else None
            for t, need in zip((x, weight, bias), needs, strict=True)
        )
        losses = torch.empty(labels.shape, dtype=wide, device=x.device)

        def piece(rows):  # a function, so that its logits are freed before the next are made
            here = x[rows].to(kind)
            logits = torch.nn.functional.linear(here, factor, shift)
            dloss = share.expand(logits.shape[:-1])
            given = {"dlogits": logits, "dloss": dloss} if any(needs) else {}
            _core.cross_entropy(
                logits, labels[rows], class_weight, out=losses[rows], **given, **options
            )
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
        return (*(t if t is None else t.mul_(dloss) for t in made), *[None] * 5)


def _write_product(out: Any, a: Any, b: Any) -> None:
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(total: Any, a: Any, b: Any) -> None:
    """Under autocast the sum keeps its own dtype, at the cost of one product's memory."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


@one_call
@torch._disable_dynamo  # torch.compiler.disable without the import of Dynamo
def linear_cross_entropy(
    x, weight, labels, bias=None, *, class_weight=None, chunk_rows=1024, ignore_index=-100,
    label_smoothing=0.0, z_loss=0.0, softcap=None, reduction="mean", validate=False,
):  # fmt: skip
    """The mean cross entropy of ``x @ weight.T + bias``, without materialising all logits.

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
        class_weight: ``(vocab,)``, what :func:`membound.cross_entropy` calls ``weight``; or None.
        chunk_rows: how many rows have their logits at one time.
        reduction: ``"mean"`` or ``"sum"``; the gradient of each row's own loss would not be known
            until the backward.
        ignore_index, label_smoothing, z_loss, softcap, validate: as of
            :func:`membound.cross_entropy`: a label that is neither in the vocabulary nor
            ignore_index makes the loss NaN; on the CPU ``validate=True`` raises.

    Returns:
        The sum over rows that count, for the mean divided by that of their labels' class weights
        (NaN where no row counts): a tensor without axes in float32 (float64 for float64). The
        gradient of weight is summed chunk by chunk in its own dtype.

    >>> import torch
    >>> x, weight = torch.ones(3, 2, requires_grad=True), torch.zeros(4, 2, requires_grad=True)
    >>> loss = linear_cross_entropy(x, weight, torch.tensor([0, 1, -100]))
    >>> loss.item()  # doctest: +ELLIPSIS
    1.386...
    >>> loss.backward()
    >>> weight.grad[2].tolist()
    [0.25, 0.25]
    """
    _check_linear(x, weight, labels, bias, class_weight, chunk_rows, reduction)
    refuse_gradients("linear_cross_entropy", {"class_weight": class_weight})
    options = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
        "softcap": softcap,
        "validate": validate,
    }
    rows = x.reshape(-1, x.shape[-1])
    return _LinearCrossEntropy.apply(
        rows, weight, bias, labels.reshape(-1), class_weight, chunk_rows, reduction, options
    )


def _check_linear(x, weight, labels, bias, class_weight, chunk_rows, reduction):
    op = "linear_cross_entropy"
    tensors = {"x": x, "weight": weight, "labels": labels, "bias": bias}
    for name, tensor in (tensors | {"class_weight": class_weight}).items():
        optional = tensor is None and name in ("bias", "class_weight")
        if not optional:
            check_tensor(op, name, tensor)
    for name in ("x", "weight"):
        if not tensors[name].dtype.is_floating_point:
            raise TypeError(
                f"{op}: argument '{name}' must be float16, bfloat16, float32 or float64, got "
                f"{str(tensors[name].dtype).removeprefix('torch.')}"
            )
    if chunk_rows < 1:
        raise ValueError(f"{op}: argument 'chunk_rows' must be at least 1, got {chunk_rows}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{op}: argument 'reduction' must be 'mean' or 'sum', got {reduction!r}")
    if x.ndim < 1:
        raise ValueError(f"{op}: argument 'x' must have at least 1 axis, got 0")
    vocab = weight.shape[0] if weight.ndim == 2 else None
    if vocab is None or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"{op}: argument 'weight' must have shape (vocab, {x.shape[-1]}), as wide as 'x', got "
            f"{tuple(weight.shape)}"
        )
    for name, tensor, shape in (
        ("labels", labels, x.shape[:-1]), ("bias", bias, (vocab,)),
        ("class_weight", class_weight, (vocab,)),
    ):  # fmt: skip
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{op}: argument '{name}' must have shape {tuple(shape)}, got {tuple(tensor.shape)}"
            )
