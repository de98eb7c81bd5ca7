# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with the reductions of other libraries' functions."""

from __future__ import annotations

from typing import Any

import torch

from membound.torch._adapters import choose
from membound.torch._cross_entropy import cross_entropy, linear_cross_entropy

REDUCTIONS = dict.fromkeys(("mean", "sum", "none"))


def reduced_cross_entropy(
    function: str, logits: Any, labels: Any, *, reduction: str = "mean", **options: Any
) -> Any:
    """Row losses, their sum, or their mean weighted by the weights of rows not ignored."""
    choose(function, "reduction", reduction, REDUCTIONS)
    return cross_entropy(logits, labels, reduction=reduction, **options)


def reduced_linear_cross_entropy(
    function: str, x: Any, weight: Any, labels: Any, bias: Any, *, reduction: str,
    class_weight: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """The same for a last layer; without a reduction all its logits are materialised."""
    choose(function, "reduction", reduction, REDUCTIONS)
    if reduction != "none":
        options |= {"class_weight": class_weight, "reduction": reduction}
        return linear_cross_entropy(x, weight, labels, bias, **options)
    options.pop("chunk_rows", None)
    logits = torch.nn.functional.linear(x, weight, bias)
    return cross_entropy(logits, labels, class_weight, **options)
