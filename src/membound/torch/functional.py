# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""``torch.nn.functional``'s functions by name, with its arguments, order and defaults."""

from __future__ import annotations

from torch.nn import _reduction

from membound.torch._adapters import adapter, own_names, refuse
from membound.torch._embedding import embedding as _embedding
from membound.torch._gated_activation import gated_activation
from membound.torch._layer_norm import layer_norm as _layer_norm
from membound.torch._losses import reduced_cross_entropy
from membound.torch._rms_norm import rms_norm as _rms_norm
from membound.torch._softmax import softmax as _softmax


@adapter(x="input")
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """RMSNorm of the last axes; eps None is the epsilon of what it computes in.

    >>> import torch
    >>> rms_norm(torch.tensor([[3.0, 4.0]]), (2,), eps=12.5).mul(10).round().tolist()
    [[6.0, 8.0]]
    """
    return _rms_norm(input, weight, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """LayerNorm of the last axes.

    >>> import torch
    >>> layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    return _layer_norm(input, weight, bias, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def softmax(input, dim=None, _stacklevel=3, dtype=None):
    """Softmax over any axis; with a dtype, of input cast to it.

    torch's own default of ``dim``, which it warns of, is refused.
    """
    if dim is None:
        raise ValueError("softmax: argument 'dim' must be an axis, such as -1; got None")
    wide = input if dtype is None else input.to(dtype)
    if dim in (-1, wide.dim() - 1):
        return _softmax(wide)
    return _softmax(wide.movedim(dim, -1)).movedim(-1, dim)


@adapter(logits="input", labels="target")
def cross_entropy(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
    reduction="mean", label_smoothing=0.0,
):  # fmt: skip
    """Cross entropy of ``(classes,)``, ``(N, classes)`` or ``(N, classes, ...)`` logits.

    The result has the dtype of the logits. Targets are class ids; probabilities are refused.
    """
    if target.dtype.is_floating_point:
        raise TypeError(
            "cross_entropy: argument 'target' must hold class ids, int32 or int64: there are no "
            f"class probabilities here; got {target.dtype}"
        )
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    logits = input.movedim(1, -1) if input.dim() > 2 else input
    loss = reduced_cross_entropy(
        "cross_entropy", logits, target, weight=weight, ignore_index=ignore_index,
        reduction=reduction, label_smoothing=label_smoothing,
    )  # fmt: skip
    return loss.to(input.dtype)


@adapter(ids="input")
def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
    sparse=False,
):  # fmt: skip
    """The rows of a table that ids name.

    The row of padding_idx, which may count from the end, gets no gradient.
    """
    refuse("embedding", "max_norm", max_norm, None, "renormalise the table first (torch.renorm)")
    instead = "call membound.embedding_backward, which has it"
    refuse("embedding", "scale_grad_by_freq", scale_grad_by_freq, False, instead)
    refuse("embedding", "sparse", sparse, False, instead)
    return _embedding(input, weight, padding_idx=padding_idx)


@adapter(gate="input", up="input")
def glu(input, dim=-1):
    """The first half of an axis times the logistic function of the second."""
    up, gate = input.chunk(2, dim=dim)
    return gated_activation(gate, up, kind="sigmoid")


@adapter(gate="input")
def silu(input, inplace=False):
    """``input * sigmoid(input)``."""
    return gated_activation(input, packing="gate", out=input if inplace else None)


@adapter(gate="input")
def gelu(input, approximate="none"):
    """``input`` times the normal distribution of it, or its approximation with ``"tanh"``."""
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    if approximate not in kinds:
        raise ValueError(
            f"gelu: argument 'approximate' must be 'none' or 'tanh', got {approximate!r}"
        )
    return gated_activation(input, packing="gate", kind=kinds[approximate])


__all__ = list(own_names(globals()))
