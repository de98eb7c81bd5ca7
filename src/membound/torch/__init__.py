# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound's ops as torch functions and modules: autograd, torch.compile, torch.func, export.

    model = AutoModelForCausalLM.from_pretrained(...)
    print(membound.torch.patch(model))  # in place: what was replaced, what was left and why

    norm = membound.torch.RMSNorm(4096)  # takes the state dict of torch.nn.RMSNorm
    y, residual = norm(x, residual)  # of x + residual
    y = membound.torch.silu_and_mul(gate_up)  # records its gradient
    loss = membound.torch.linear_cross_entropy(y, weight, labels)  # no logits are kept

The names:

    Models          patch, unpatch
    Modules         RMSNorm, LayerNorm, GatedRMSNorm, GatedActivation, Embedding, RotaryEmbedding
    Norms           rms_norm, add_rms_norm, layer_norm, add_layer_norm, rms_norm_gated
    Activations     gated_activation, silu_and_mul, gelu_and_mul, gelu_tanh_and_mul,
                    sigmoid_and_mul, relu2, gated_linear
    Rotary          rope, qk_norm_rope
    Embedding       embedding
    Losses          softmax, cross_entropy, linear_cross_entropy, linear_log_probs, soft_cap
    8-bit results   rms_norm_quant, add_rms_norm_quant, gated_activation_quant, silu_and_mul_quant
    Other names     fused_add_rms_norm, gemma_rms_norm, gemma_fused_add_rms_norm
    Names of others apex, flash_attention, flashinfer, functional (torch.nn's), huggingface, liger,
                    quack, transformer_engine, unsloth, vllm: modules to import

Plain eager calls run membound's own functions and record a gradient if one is required. Traced
code and wrapped tensors call an operator of torch's registry instead.
"""

from membound import _spellings
from membound.torch import _elementwise
from membound.torch._cross_entropy import cross_entropy
from membound.torch._elementwise import *  # noqa: F403 - written by the build
from membound.torch._embedding import embedding
from membound.torch._gated_activation import (
    gated_activation,
    gelu_and_mul,
    gelu_tanh_and_mul,
    relu2,
    sigmoid_and_mul,
    silu_and_mul,
)
from membound.torch._gated_activation_quant import gated_activation_quant, silu_and_mul_quant
from membound.torch._gated_linear import gated_linear
from membound.torch._layer_norm import add_layer_norm, layer_norm
from membound.torch._linear_cross_entropy import linear_cross_entropy
from membound.torch._log_probs import linear_log_probs
from membound.torch._modules import (
    Embedding,
    GatedActivation,
    GatedRMSNorm,
    LayerNorm,
    RMSNorm,
    RotaryEmbedding,
)
from membound.torch._patch import patch, unpatch
from membound.torch._qk_norm_rope import qk_norm_rope
from membound.torch._rms_norm import (
    add_rms_norm,
    fused_add_rms_norm,
    gemma_fused_add_rms_norm,
    gemma_rms_norm,
    rms_norm,
    rms_norm_gated,
)
from membound.torch._rms_norm_quant import add_rms_norm_quant, rms_norm_quant
from membound.torch._rope import rope
from membound.torch._softmax import softmax

__all__ = [
    "Embedding",
    "GatedActivation",
    "GatedRMSNorm",
    "LayerNorm",
    "RMSNorm",
    "RotaryEmbedding",
    "add_layer_norm",
    "add_rms_norm",
    "add_rms_norm_quant",
    "cross_entropy",
    "embedding",
    "fused_add_rms_norm",
    "gated_activation",
    "gated_activation_quant",
    "gated_linear",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gemma_fused_add_rms_norm",
    "gemma_rms_norm",
    "layer_norm",
    "linear_cross_entropy",
    "linear_log_probs",
    "patch",
    "qk_norm_rope",
    "relu2",
    "rms_norm",
    "rms_norm_gated",
    "rms_norm_quant",
    "rope",
    "sigmoid_and_mul",
    "silu_and_mul",
    "silu_and_mul_quant",
    "softmax",
    "unpatch",
]
__all__ += _elementwise.__all__


def __getattr__(name: str) -> object:
    raise _spellings.missing_attribute(name, __all__, __name__)
