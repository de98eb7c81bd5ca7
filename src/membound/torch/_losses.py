# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with the class weights and reductions that other libraries' functions take."""

from __future__ import annotations

from typing import Any

import torch

from membound.torch._adapters import choose
from membound.torch._cross_entropy import cross_entropy, linear_cross_entropy

REDUCTIONS = dict.fromkeys(("mean", "sum", "none"))


def reduced_cross_entropy(
    function: str, logits: Any, labels: Any, *, weight: Any = None, ignore_index: int = -100,
    reduction: str = "mean", **options: Any,
) -> Any:  # fmt: skip
    """The losses of rows, or their sum, or that divided by the weights of the rows that count."""
    choose(function, "reduction", reduction, REDUCTIONS)
    losses = cross_entropy(logits, labels, ignore_index=ignore_index, **options)
    counted = labels != ignore_index
    if weight is not None:
        if options.get("label_smoothing") or options.get("z_loss"):
            raise ValueError(
                f"{function}: argument 'weight' must be None with a label smoothing or a z loss, "
                f"got a tensor of shape {tuple(weight.shape)}"
            )
        counted = weight.to(losses.dtype)[torch.where(counted, labels, 0)] * counted
        losses = losses * counted
    if reduction == "none":
        return losses
    return losses.sum() / counted.sum() if reduction == "mean" else losses.sum()


def reduced_linear_cross_entropy(
    function: str, x: Any, weight: Any, labels: Any, bias: Any, *, reduction: str,
    ignore_index: int = -100, **options: Any,
) -> Any:  # fmt: skip
    """The same of a last layer; without a reduction its logits are made as a whole."""
    choose(function, "reduction", reduction, REDUCTIONS)
    if reduction == "none":
        logits = torch.nn.functional.linear(x, weight, bias)
        options.pop("chunk_rows", None)
        return cross_entropy(logits, labels, ignore_index=ignore_index, **options)
    mean = linear_cross_entropy(x, weight, labels, bias, ignore_index=ignore_index, **options)
    return mean if reduction == "mean" else mean * (labels != ignore_index).sum()
