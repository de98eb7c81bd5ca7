# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""apex's functions and modules by name, and those of its former ``apex.transformer``.

``memory_efficient`` is taken and ignored: less is saved already than apex saves with it.
"""

from __future__ import annotations

import torch
from torch import nn

from membound.torch import _modules
from membound.torch._adapters import adapter, angle_rows, cos_and_sin, own_names, refuse
from membound.torch._cross_entropy import cross_entropy
from membound.torch._layer_norm import layer_norm
from membound.torch._rms_norm import rms_norm
from membound.torch._rope import rope
from membound.torch._softmax import softmax

# --- norms ---


@adapter(x="input")
def fused_layer_norm_affine(
    input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False
):
    """LayerNorm over the last axes, in the dtype of input."""
    return layer_norm(input, weight, bias, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """LayerNorm over the last axes, without weight and bias."""
    return layer_norm(input, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """RMSNorm over the last axes, in the dtype of input."""
    return rms_norm(input, weight, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """RMSNorm over the last axes, without a weight."""
    return rms_norm(input, eps=eps, normalized_shape=normalized_shape)


@adapter(x="input")
def mixed_dtype_fused_layer_norm_affine(
    input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False
):
    """LayerNorm over the last axes, in the dtype of weight."""
    return layer_norm(
        input, weight, bias, eps=eps, normalized_shape=normalized_shape, dtype=weight.dtype
    )


@adapter(x="input")
def mixed_dtype_fused_rms_norm_affine(
    input, weight, normalized_shape, eps=1e-6, memory_efficient=False
):
    """RMSNorm over the last axes, in the dtype of weight."""
    return rms_norm(input, weight, eps=eps, normalized_shape=normalized_shape, dtype=weight.dtype)


@adapter(x="input")
def manual_rms_norm(input, normalized_shape, weight, eps):
    """:func:`fused_rms_norm_affine` with another order of arguments; weight may be None."""
    return rms_norm(input, weight, eps=eps, normalized_shape=normalized_shape)


class FusedLayerNorm(_modules.LayerNorm):
    """LayerNorm with the parameters of torch.nn.LayerNorm."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False):
        super().__init__(normalized_shape, eps, elementwise_affine)
        self.memory_efficient = memory_efficient

    @adapter(x="input")
    def forward(self, input):
        return super().forward(input)


class FusedRMSNorm(_modules.RMSNorm):
    """RMSNorm with the parameter of torch.nn.RMSNorm."""

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False):
        super().__init__(normalized_shape, eps, elementwise_affine)
        self.memory_efficient = memory_efficient

    @adapter(x="input")
    def forward(self, input):
        return super().forward(input)


def _always_affine(module, given):
    affine = given.pop("elementwise_affine", True)
    refuse(module, "elementwise_affine", affine, True, f"use {module.removeprefix('Mixed')}")
    if given:
        raise TypeError(f"{module}: argument '{next(iter(given))}' is unknown")


class MixedFusedLayerNorm(FusedLayerNorm):
    """LayerNorm whose result has the dtype of the weight."""

    def __init__(self, normalized_shape, eps=1e-5, *, memory_efficient=False, **kwargs):
        _always_affine("MixedFusedLayerNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    @adapter(x="input")
    def forward(self, input):
        return mixed_dtype_fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMSNorm whose result has the dtype of the weight."""

    def __init__(self, normalized_shape, eps=1e-5, *, memory_efficient=False, **kwargs):
        _always_affine("MixedFusedRMSNorm", kwargs)
        super().__init__(normalized_shape, eps, True, memory_efficient)

    @adapter(x="input")
    def forward(self, input):
        return mixed_dtype_fused_rms_norm_affine(
            input, self.weight, self.normalized_shape, self.eps
        )


class FastLayerNorm(_modules.LayerNorm):
    """LayerNorm of ``apex.contrib.layer_norm``."""

    def __init__(self, hidden_size, eps=1e-5, memory_efficient=False):
        super().__init__(hidden_size, eps)
        self.memory_efficient = memory_efficient

    @adapter()
    def forward(self, x):
        return super().forward(x)


class SoftmaxCrossEntropyLoss:
    """The losses of rows of logits, of ``apex.contrib.xentropy``: called by ``apply``."""

    @staticmethod
    @adapter("SoftmaxCrossEntropyLoss", label_smoothing="smoothing", ignore_index="padding_idx")
    def apply(logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False):
        """Rows with the label padding_idx are 0; half_to_float keeps losses of 16 bits float32."""
        losses = cross_entropy(logits, labels, ignore_index=padding_idx, label_smoothing=smoothing)
        return losses if half_to_float else losses.to(logits.dtype)


# --- rotary embedding ---

_T = {"q": "t", "cos": "freqs", "sin": "freqs"}


def _of_sequences(t, cos, sin, transpose_output_memory):
    """Rotate (seq, batch, heads, head_dim); the result's memory may have the batch first."""
    options = {"rotary_dim": cos.shape[-1]}
    if transpose_output_memory:
        return rope(t.transpose(0, 1), None, cos, sin, layout="bshd", **options).transpose(0, 1)
    return rope(t, None, cos, sin, layout="sbhd", **options)


@adapter(**_T)
def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False):
    """Rotate ``(seq, batch, heads, head_dim)`` by angles of ``(positions, 1, 1, rotary_dim)``.

    >>> import torch
    >>> t, freqs = torch.ones(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)
    >>> bool((fused_apply_rotary_pos_emb(t, freqs) == t).all())
    True
    """
    rows = angle_rows("fused_apply_rotary_pos_emb", "freqs", freqs)[: len(t)]
    return _of_sequences(t, *cos_and_sin(rows, t), transpose_output_memory)


@adapter(q="t", cos="cos_", sin="sin_")
def fused_apply_rotary_pos_emb_cached(t, cos_, sin_, transpose_output_memory=False):
    """The same with the cosines and sines of the angles."""
    name = "fused_apply_rotary_pos_emb_cached"
    cos, sin = angle_rows(name, "cos_", cos_), angle_rows(name, "sin_", sin_)
    return _of_sequences(t, cos, sin, transpose_output_memory)


@adapter(**_T)
def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs):
    """The same of ``(tokens, heads, head_dim)``; sequence i starts at ``cu_seqlens[i]``."""
    rows = angle_rows("fused_apply_rotary_pos_emb_thd", "freqs", freqs)[: len(t)]
    options = {"layout": "thd", "rotary_dim": rows.shape[-1]}
    return rope(t, None, *cos_and_sin(rows, t), cu_seqlens=cu_seqlens, **options)


@adapter(q="t", cos="cos_h", sin="sin_h")
def fused_apply_rotary_pos_emb_2d(t, img_h, img_w, cos_h, sin_h, cos_w, sin_w):
    """Rotate ``(batch, img_h * img_w, heads, head_dim)`` by the row and by the column of a token.

    Each rotates one half of a head: two launches.
    """
    name = "fused_apply_rotary_pos_emb_2d"
    if t.dim() != 4 or t.shape[1] != img_h * img_w:
        raise ValueError(
            f"{name}: argument 't' must have shape (batch, {img_h * img_w}, heads, head_dim), got "
            f"{tuple(t.shape)}"
        )
    index = torch.arange(img_h * img_w, device=t.device)
    half = t.shape[-1] // 2
    rotated = rope(
        t, None, cos_h[0, :, 0], sin_h[0, :, 0], rotary_dim=half,
        position_ids=index.div(img_w, rounding_mode="floor"),
    )  # fmt: skip
    return rope(
        rotated, None, cos_w[0, :, 0], sin_w[0, :, 0], rotary_dim=half, rotary_offset=half,
        position_ids=index % img_w,
    )  # fmt: skip


# --- softmax ---


@adapter(x="inputs")
def scaled_masked_softmax(inputs, mask, scale):
    """Softmax of ``scale * inputs`` where mask is False (or 0); None masks nothing."""
    return softmax(inputs, None if mask is None else mask.logical_not(), scale=scale)


@adapter(x="inputs")
def generic_scaled_masked_softmax(inputs, mask, scale):
    """:func:`scaled_masked_softmax`, which has no limit of lengths here."""
    return softmax(inputs, None if mask is None else mask.logical_not(), scale=scale)


@adapter(x="inputs")
def scaled_upper_triang_masked_softmax(inputs, _, scale):
    """Softmax of ``scale * inputs`` where the key is no later than the query."""
    if inputs.shape[-1] != inputs.shape[-2]:
        raise ValueError(
            "scaled_upper_triang_masked_softmax: argument 'inputs' must have as many queries as "
            f"keys, got shape {tuple(inputs.shape)}"
        )
    return softmax(inputs, scale=scale, causal_offset=0)


class FusedScaleMaskSoftmax(nn.Module):
    """Softmax of ``scale * input`` with a causal mask, or where mask is False.

    attn_mask_type: apex's AttnMaskType, ``"causal"`` or ``"padding"``. ``input_in_fp16``,
    ``input_in_bf16``, ``scaled_masked_softmax_fusion``, ``mask_func`` and ``softmax_in_fp32`` are
    taken and ignored: what is masked is left out of the sums, which are in float32.
    """

    def __init__(
        self, input_in_fp16, input_in_bf16, attn_mask_type, scaled_masked_softmax_fusion, mask_func,
        softmax_in_fp32, scale,
    ):  # fmt: skip
        super().__init__()
        kind = getattr(attn_mask_type, "name", attn_mask_type)
        if kind not in ("causal", "padding"):
            raise ValueError(
                f"{type(self).__name__}: argument 'attn_mask_type' must be 'causal' or 'padding', "
                f"got {attn_mask_type!r}"
            )
        self.attn_mask_type = attn_mask_type
        self.scale = scale
        self._causal = kind == "causal"

    @adapter(x="input")
    def forward(self, input, mask):
        scale = 1.0 if self.scale is None else self.scale
        if self._causal:
            refuse(type(self).__name__, "mask", mask, None, "a causal softmax has its own")
            return softmax(input, scale=scale, causal_offset=input.shape[-1] - input.shape[-2])
        return softmax(input, None if mask is None else mask.logical_not(), scale=scale)


class GenericFusedScaleMaskSoftmax(FusedScaleMaskSoftmax):
    """The same where mask is False."""

    def __init__(
        self, input_in_fp16, input_in_bf16, scaled_masked_softmax_fusion, mask_func,
        softmax_in_fp32, scale,
    ):  # fmt: skip
        super().__init__(
            input_in_fp16, input_in_bf16, "padding", scaled_masked_softmax_fusion, mask_func,
            softmax_in_fp32, scale,
        )  # fmt: skip


__all__ = list(own_names(globals()))
