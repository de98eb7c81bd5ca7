# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel's losses by name; liger.py exports them."""

from __future__ import annotations

from torch import nn

from membound.torch._adapters import adapter, choose, refuse
from membound.torch._losses import (
    REDUCTIONS,
    reduced_cross_entropy,
    reduced_linear_cross_entropy,
)


def _refuse_more(function, return_z_loss, return_token_accuracy, return_predicted_tokens):
    refuse(function, "return_z_loss", return_z_loss, False, "subtract the loss without it")
    instead = "compare labels with logits.argmax(-1)"
    refuse(function, "return_token_accuracy", return_token_accuracy, False, instead)
    refuse(function, "return_predicted_tokens", return_predicted_tokens, False, instead)


@adapter(logits="input", labels="target", z_loss="lse_square_scale")
def liger_cross_entropy(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
    reduction="mean", label_smoothing=0.0, lse_square_scale=0.0, softcap=None, return_z_loss=False,
    return_token_accuracy=False, return_predicted_tokens=False,
):  # fmt: skip
    """Cross entropy of rows of logits, in their dtype.

    ``size_average`` and ``reduce`` are taken and ignored, as there.
    """
    name = "liger_cross_entropy"
    _refuse_more(name, return_z_loss, return_token_accuracy, return_predicted_tokens)
    if weight is not None and lse_square_scale:
        refuse(name, "weight", weight, None, "with lse_square_scale it is weighted here, not there")
    loss = reduced_cross_entropy(
        name, input, target, weight=weight, ignore_index=ignore_index, reduction=reduction,
        label_smoothing=label_smoothing, z_loss=lse_square_scale, softcap=softcap,
    )  # fmt: skip
    return loss.to(input.dtype)


@adapter(x="input", labels="target", class_weight="ce_weight", z_loss="lse_square_scale")
def liger_fused_linear_cross_entropy(
    input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
    label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
    use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False,
    chunk_mem_const=1,
):  # fmt: skip
    """Cross entropy of ``input @ weight.T + bias``, without materialising all logits."""
    name = "liger_fused_linear_cross_entropy"
    _refuse_more(name, return_z_loss, return_token_accuracy, return_predicted_tokens)
    if ce_weight is not None and lse_square_scale:
        instead = "with lse_square_scale it is weighted here, not there"
        refuse(name, "ce_weight", ce_weight, None, instead)
    refuse(name, "use_token_scaling", use_token_scaling, False, "use reduction='none'")
    if accum_dtype != weight.dtype:
        refuse(name, "accum_dtype", accum_dtype, None, "gradients are summed in weight's dtype")
    return reduced_linear_cross_entropy(
        name, input, weight, target, bias, class_weight=ce_weight, reduction=reduction,
        ignore_index=ignore_index, label_smoothing=label_smoothing, z_loss=lse_square_scale,
        softcap=softcap,
    )  # fmt: skip


class LigerCrossEntropyLoss(nn.Module):
    """:func:`liger_cross_entropy` as a module."""

    def __init__(
        self, weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
        reduction="mean", softcap=None, return_z_loss=False, return_token_accuracy=False,
        return_predicted_tokens=False,
    ):  # fmt: skip
        super().__init__()
        choose("LigerCrossEntropyLoss", "reduction", reduction, REDUCTIONS)
        self.weight = weight
        self.options = {
            "ignore_index": ignore_index, "lse_square_scale": lse_square_scale,
            "label_smoothing": label_smoothing, "reduction": reduction, "softcap": softcap,
            "return_z_loss": return_z_loss, "return_token_accuracy": return_token_accuracy,
            "return_predicted_tokens": return_predicted_tokens,
        }  # fmt: skip

    @adapter(input="_input")
    def forward(self, _input, target):
        return liger_cross_entropy(_input, target, self.weight, **self.options)


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    """:func:`liger_fused_linear_cross_entropy` as a module."""

    def __init__(
        self, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0,
        reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
        use_token_scaling=False, return_token_accuracy=False, return_predicted_tokens=False,
    ):  # fmt: skip
        super().__init__()
        self.options = {
            "ce_weight": ce_weight, "ignore_index": ignore_index,
            "lse_square_scale": lse_square_scale, "label_smoothing": label_smoothing,
            "reduction": reduction, "softcap": softcap, "return_z_loss": return_z_loss,
            "accum_dtype": accum_dtype, "use_token_scaling": use_token_scaling,
            "return_token_accuracy": return_token_accuracy,
            "return_predicted_tokens": return_predicted_tokens,
        }  # fmt: skip

    @adapter(input="_input", weight="lin_weight")
    def forward(self, lin_weight, _input, target, bias=None):
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, **self.options)
