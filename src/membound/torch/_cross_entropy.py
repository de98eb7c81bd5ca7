# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of logits."""

from __future__ import annotations

from typing import Any

import torch

from membound import _core
from membound.torch._functions import differentiable
from membound.torch._operators import (
    contiguous_like,
    define_without_gradient,
    operator,
    rows_like,
)
from membound.torch._recording import refuse_gradients
from membound.torch._schemas import SCHEMAS
from membound.torch._vocab_shards import sharded_cross_entropy

_OPTIONS = SCHEMAS["cross_entropy"]["options"]


def _named(options: Any) -> dict[str, Any]:
    return dict(zip(_OPTIONS, options, strict=True))


_CROSS_ENTROPY = operator(
    "cross_entropy",
    lambda grads, saved, options, _: (
        _core.cross_entropy_backward(*grads, *saved, **_named(options)),
    ),
    lambda _: {"return_lse": True},
    columns=sharded_cross_entropy,
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
