# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy with the reductions of other libraries' functions."""

from __future__ import annotations

from typing import Any

from membound.torch._adapters import choose
from membound.torch._cross_entropy import cross_entropy
from membound.torch._linear_cross_entropy import linear_cross_entropy

REDUCTIONS = dict.fromkeys(("mean", "sum", "none"))


def reduced_cross_entropy(
    function: str, logits: Any, labels: Any, *, reduction: str = "mean", **options: Any
) -> Any:
    """Row losses, their sum, or their mean weighted by the weights of rows not ignored."""
    choose(function, "reduction", reduction, REDUCTIONS)
    return cross_entropy(logits, labels, reduction=reduction, **options)


def reduced_linear_cross_entropy(
    function: str, x: Any, weight: Any, labels: Any, bias: Any, *, reduction: str,
    **options: Any,
) -> Any:  # fmt: skip
    """The same for a last layer, whose logits are made chunk by chunk."""
    choose(function, "reduction", reduction, REDUCTIONS)
    return linear_cross_entropy(x, weight, labels, bias, reduction=reduction, **options)
