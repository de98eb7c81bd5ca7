# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound's ops as JAX functions: eager, under jit, vmap and grad, on CPU and CUDA arrays.

They run through XLA's typed foreign function interface: XLA allocates the outputs, orders the work
on its own stream and may capture it in a CUDA graph. Handlers are registered at the first call.

Other names of these functions, as ``silu_and_mul`` and ``gemma_rms_norm``, are membound's own: for
JAX arrays, traced ones too, those call the functions here.

Arrays that devices share under automatic sharding stay where they are along rows (of weights for
each head, along heads), and sums over rows are one all-reduce. So they do along columns in norms,
softmax and their gradients, for one small all-reduce of what each row needs (softmax forward: two),
and in ``gated_activation`` of gate and up apart, ``relu2`` and embedding for none. XLA gathers
what is left, without a word: sharded columns of ``cross_entropy``, of ops with quantised results,
of gate and up in one array, and of heads in ``rope`` and ``qk_norm_rope``; normalised axes but the
first, where there are several; rows of an embedding's table; what ``jax.vmap`` maps; and axes that
the devices do not divide, where they count in sums.
"""

from membound import (
    gelu_and_mul,
    gelu_and_mul_backward,
    gelu_tanh_and_mul,
    gelu_tanh_and_mul_backward,
    gemma_rms_norm,
    relu2,
    relu2_backward,
    sigmoid_and_mul,
    sigmoid_and_mul_backward,
    silu_and_mul,
    silu_and_mul_backward,
)
from membound.jax._cross_entropy import cross_entropy, cross_entropy_backward
from membound.jax._embedding import embedding
from membound.jax._embedding_backward import embedding_backward
from membound.jax._gated_activation import gated_activation, gated_activation_backward
from membound.jax._gated_activation_quant import gated_activation_quant, silu_and_mul_quant
from membound.jax._layer_norm import (
    add_layer_norm,
    add_layer_norm_backward,
    layer_norm,
    layer_norm_backward,
)
from membound.jax._qk_norm_rope import qk_norm_rope, qk_norm_rope_backward
from membound.jax._rms_norm import add_rms_norm, add_rms_norm_backward, rms_norm, rms_norm_backward
from membound.jax._rms_norm_gated import rms_norm_gated, rms_norm_gated_backward
from membound.jax._rms_norm_quant import add_rms_norm_quant, rms_norm_quant
from membound.jax._rope import rope, rope_backward
from membound.jax._softmax import softmax, softmax_backward

__all__ = [
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "add_rms_norm_quant",
    "cross_entropy",
    "cross_entropy_backward",
    "embedding",
    "embedding_backward",
    "gated_activation",
    "gated_activation_backward",
    "gated_activation_quant",
    "gelu_and_mul",
    "gelu_and_mul_backward",
    "gelu_tanh_and_mul",
    "gelu_tanh_and_mul_backward",
    "gemma_rms_norm",
    "layer_norm",
    "layer_norm_backward",
    "qk_norm_rope",
    "qk_norm_rope_backward",
    "relu2",
    "relu2_backward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_gated",
    "rms_norm_gated_backward",
    "rms_norm_quant",
    "rope",
    "rope_backward",
    "sigmoid_and_mul",
    "sigmoid_and_mul_backward",
    "silu_and_mul",
    "silu_and_mul_backward",
    "silu_and_mul_quant",
    "softmax",
    "softmax_backward",
]
