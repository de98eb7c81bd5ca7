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
from membound.torch._adapters import adapter, choose
from membound.torch._gated_activation import gated_activation
from membound.torch._gated_linear import gated_linear
from membound.torch._liger_losses import (  # noqa: F401 - names of this namespace
    LigerCrossEntropyLoss,
    LigerFusedLinearCrossEntropyLoss,
    liger_cross_entropy,
    liger_fused_linear_cross_entropy,
)
from membound.torch._liger_norms import (  # noqa: F401 - names of this namespace
    LigerFusedAddRMSNorm,
    LigerLayerNorm,
    LigerRMSNorm,
    LigerRMSNormForGemma,
    LigerRMSNormForGemma2,
    LigerRMSNormForGemma3,
    LigerRMSNormForGemma4,
    LigerRMSNormForGlm4,
    LigerRMSNormForOlmo2,
    LigerRMSNormForQwen3Next,
    liger_fused_add_rms_norm,
    liger_layer_norm,
    liger_rms_norm,
)
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
