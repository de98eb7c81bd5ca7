# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel's functions and modules by name.

``in_place``, ``row_mode``, ``impl``, ``mode``, ``backend`` and ``chunk_mem_const`` are taken and
ignored: they choose a launch or the memory of gradients, not a result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from membound.torch import _modules
from membound.torch._adapters import adapter, choose, own_names, refuse
from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._layer_norm import layer_norm
from membound.torch._losses import (
    REDUCTIONS,
    reduced_cross_entropy,
    reduced_linear_cross_entropy,
)
from membound.torch._rms_norm import add_rms_norm, rms_norm
from membound.torch._rope import rope
from membound.torch._softmax import softmax
from membound.torch.huggingface import apply_rotary_pos_emb

# --- activations and gated feed-forward blocks ---


@adapter(gate="a", up="b")
def liger_swiglu(a, b):
    """``silu(a) * b``."""
    return gated_activation(a, b)


@adapter(gate="a", up="b")
def liger_geglu(a, b):
    """``gelu(a, 'tanh') * b``."""
    return gated_activation(a, b, kind="gelu_tanh")


@adapter(gate="x")
def liger_relu_squared(x):
    """``relu(x) ** 2``."""
    return gated_activation(x, kind="relu2", packing="gate")


class LigerReLUSquared(nn.Module):
    """``relu(x) ** 2``."""

    @adapter(gate="x")
    def forward(self, x):
        return gated_activation(x, kind="relu2", packing="gate")


class _GatedMLP(nn.Module):
    """Three projections and a gated activation, which is not saved."""

    _kind = "silu"

    def __init__(self, config, intermediate_size=None):
        super().__init__()
        self.config = config
        self.hidden_size = config.hidden_size
        self.intermediate_size = (
            config.intermediate_size if intermediate_size is None else intermediate_size
        )
        self.gate_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.up_proj = nn.Linear(self.hidden_size, self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return gated_linear(gate, up, self.down_proj.weight, kind=self._kind)


def _check_act(module: nn.Module, config: Any) -> None:
    if config.hidden_act not in ("silu", "swish"):
        raise ValueError(
            f"{type(module).__name__}: argument 'config' must have the hidden_act 'silu' or "
            f"'swish', got {config.hidden_act!r}"
        )


class LigerSwiGLUMLP(_GatedMLP):
    """The gated MLP of Llama."""

    def __init__(self, config, intermediate_size=None):
        super().__init__(config, intermediate_size)
        _check_act(self, config)


class LigerQwen3MoeSwiGLUMLP(LigerSwiGLUMLP):
    """The gated MLP of an expert of Qwen3-MoE."""


class LigerGEGLUMLP(_GatedMLP):
    """The gated MLP of Gemma: gelu with tanh."""

    _kind = "gelu_tanh"

    def __init__(self, config):
        super().__init__(config)


class LigerPhi3SwiGLUMLP(nn.Module):
    """The gated MLP of Phi-3: one projection computes gate and up."""

    def __init__(self, config):
        super().__init__()
        _check_act(self, config)
        self.config = config
        self.hidden_size = config.hidden_size
        self.intermediate_size = config.intermediate_size
        self.gate_up_proj = nn.Linear(self.hidden_size, 2 * self.intermediate_size, bias=False)
        self.down_proj = nn.Linear(self.intermediate_size, self.hidden_size, bias=False)

    def forward(self, x):
        return gated_linear(self.gate_up_proj(x), None, self.down_proj.weight)


class LigerBlockSparseTop2MLP(nn.Module):
    """The gated MLP of an expert of Mixtral."""

    def __init__(self, config):
        super().__init__()
        _check_act(self, config)
        self.ffn_dim = config.intermediate_size
        self.hidden_dim = config.hidden_size
        self.w1 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)
        self.w2 = nn.Linear(self.ffn_dim, self.hidden_dim, bias=False)
        self.w3 = nn.Linear(self.hidden_dim, self.ffn_dim, bias=False)

    def forward(self, x):
        return gated_linear(self.w1(x), self.w3(x), self.w2.weight)


# --- rotary embedding ---


@adapter()
def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Rotate q and k by rows of each token, as Hugging Face's ``apply_rotary_pos_emb`` does.

    position_ids is taken and ignored, as there: cos and sin are rows of tokens. With rotary_dim
    they have half its width, without every angle twice.
    """
    if rotary_dim is None:
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
    layouts = {1: "bhsd", 2: "bshd"}
    layout = choose("liger_rotary_pos_emb", "unsqueeze_dim", unsqueeze_dim, layouts)
    return rope(q, k, cos, sin, layout=layout, rotary_dim=rotary_dim)


liger_rope = liger_rotary_pos_emb


@adapter()
def liger_rotary_pos_emb_gpt_oss(q, k, cos, sin):
    """Rotate q and k, ``(batch, heads, seq, head_dim)``, by rows of half their width."""
    return rope(q, k, cos, sin, layout="bhsd", rotary_dim=q.shape[-1])


@adapter()
def liger_rotary_pos_emb_vision(q, k, cos, sin):
    """Rotate q and k, ``(seq, heads, head_dim)``, by rows of ``(seq, head_dim)``."""
    return rope(q, k, cos, sin, layout="thd", rotary_dim=cos.shape[-1])


@adapter()
def liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """Rotate q and k by rows of time, height and width, ``(3, batch, seq, head_dim)``.

    Sections of columns are taken from each of them, which gives tables of one row per token.
    """
    widths = list(mrope_section) * 2
    cos, sin = (
        torch.cat([part[at % 3] for at, part in enumerate(table.split(widths, dim=-1))], dim=-1)
        for table in (cos, sin)
    )
    return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)


liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb


@adapter(q="xq", k="xk", cos="freqs_cis", sin="freqs_cis")
def liger_llama4_text_rotary_pos_emb(xq, xk, freqs_cis):
    """Rotate adjacent pairs of ``(batch, seq, heads, head_dim)`` by complex ``(seq, dim / 2)``."""
    rows = freqs_cis if freqs_cis.dim() == 2 or freqs_cis.shape[0] > 1 else freqs_cis[0]
    return rope(xq, xk, rows.real, rows.imag, interleaved=True, rotary_dim=2 * rows.shape[-1])


# --- softmax, embedding and losses ---


@adapter()
def liger_softmax(x):
    """Softmax over the last axis."""
    return softmax(x)


class LigerSoftmax(nn.Module):
    """Softmax over the last axis."""

    @adapter()
    def forward(self, x):
        return softmax(x)


class LigerEmbedding(_modules.Embedding):
    """Rows of a table; every run gives the same gradient."""

    def __init__(self, num_embeddings, embedding_dim, padding_idx=None):
        super().__init__(num_embeddings, embedding_dim, padding_idx)

    @adapter(ids="indices")
    def forward(self, indices):
        return super().forward(indices)


# --- norms ---


# In Liger-Kernel "none" computes in the rows' dtype; here it uses float32, as "gemma" does.
_ROUNDINGS = {"llama": "before_weight", "gemma": "once", "none": "once"}


def _casting(function: str, casting_mode: str, offset: float) -> dict[str, Any]:
    """Translate a casting mode and an offset; no model combines Llama's rounding and an offset."""
    rounding = choose(function, "casting_mode", casting_mode, _ROUNDINGS)
    return {"weight_offset": offset, "rounding": rounding}


@adapter(x="X", weight="W", weight_offset="offset", rounding="casting_mode")
def liger_rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """RMSNorm of X with the weight ``W + offset``.

    >>> import torch
    >>> x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    >>> liger_rms_norm(x, weight, 12.5).mul(10).round().tolist()
    [[6.0, 16.0]]
    """
    return rms_norm(X, W, eps=eps, **_casting("liger_rms_norm", casting_mode, offset))


@adapter(x="X", residual="R", weight="W", weight_offset="offset", rounding="casting_mode")
def liger_fused_add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    """RMSNorm of ``X + R``, and the sum."""
    options = _casting("liger_fused_add_rms_norm", casting_mode, offset)
    return add_rms_norm(X, R, W, eps=eps, **options)


@adapter(x="X", weight="W", bias="B")
def liger_layer_norm(X, W, B, eps):
    """LayerNorm of X with the weight W and the bias B."""
    return layer_norm(X, W, B, eps=eps)


def _initial(function: str, init_fn: str) -> float:
    return choose(function, "init_fn", init_fn, {"ones": 1.0, "zeros": 0.0})


class LigerRMSNorm(_modules.RMSNorm):
    """RMSNorm with ``weight + offset``; the weight starts at 1 or 0, as init_fn says."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=True, row_mode=None, elementwise_affine=True,
    ):  # fmt: skip
        name = type(self).__name__
        self._start = _initial(name, init_fn)
        options = _casting(name, casting_mode, offset)
        super().__init__(hidden_size, eps, elementwise_affine, **options)
        self.offset = offset
        self.casting_mode = casting_mode
        self.in_place = in_place
        self.row_mode = row_mode

    @property
    def variance_epsilon(self):
        """The name that models have for eps."""
        return self.eps

    def reset_parameters(self):
        """Reset the weight as init_fn says."""
        if self.weight is not None:
            nn.init.constant_(self.weight, self._start)

    @adapter("LigerRMSNorm", x="hidden_states")
    def forward(self, hidden_states):
        return super().forward(hidden_states)


class LigerRMSNormForGemma(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=True, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma2(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 2."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGemma3(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 3."""

    def __init__(
        self, dim, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False,
    ):  # fmt: skip
        super().__init__(dim, eps, offset, casting_mode, init_fn, in_place)


class LigerRMSNormForGemma4(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Gemma 4."""

    def __init__(
        self, dim, eps=1e-6, offset=0.0, casting_mode="gemma", init_fn="ones",
        in_place=False, with_scale=True,
    ):  # fmt: skip
        super().__init__(
            dim, eps, offset, casting_mode, init_fn, in_place, elementwise_affine=with_scale
        )


class LigerRMSNormForOlmo2(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of OLMo 2."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForGlm4(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of GLM-4."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerRMSNormForQwen3Next(LigerRMSNorm):
    """:class:`LigerRMSNorm` with the defaults of Qwen3-Next."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=1.0, casting_mode="gemma", init_fn="zeros",
        in_place=False, row_mode=None,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place, row_mode)


class LigerFusedAddRMSNorm(LigerRMSNorm):
    """RMSNorm of ``hidden_states + residual``, and the sum."""

    def __init__(
        self, hidden_size, eps=1e-6, offset=0.0, casting_mode="llama", init_fn="ones",
        in_place=False,
    ):  # fmt: skip
        super().__init__(hidden_size, eps, offset, casting_mode, init_fn, in_place)

    @adapter(x="hidden_states")
    def forward(self, hidden_states, residual):
        return _modules.RMSNorm.forward(self, hidden_states, residual)


class LigerLayerNorm(nn.Module):
    """LayerNorm with a bias that is always there: random with ``bias=True``, else 0."""

    def __init__(
        self, hidden_size, eps=1e-6, bias=False, init_fn="ones", impl=None, mode=None, backend=None
    ):
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = self.variance_epsilon = eps
        start = _initial("LigerLayerNorm", init_fn)
        self.weight = nn.Parameter(torch.full((hidden_size,), start))
        self.bias = nn.Parameter(torch.randn(hidden_size) if bias else torch.zeros(hidden_size))

    @adapter(x="hidden_states")
    def forward(self, hidden_states):
        return layer_norm(hidden_states, self.weight, self.bias, eps=self.variance_epsilon)


# --- losses ---


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


__all__ = list(own_names(globals()))
