# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound's ops as JAX functions: eager, under jit, vmap and grad, on CPU and CUDA arrays.

They run through XLA's typed foreign function interface: XLA allocates the outputs, orders the work
on its own stream and may capture it in a CUDA graph. Handlers are registered at the first call.

Aliases such as ``silu_and_mul`` and ``gemma_rms_norm`` are in ``membound`` itself: given JAX
arrays, traced or not, they call the functions here.

Under automatic sharding, row-sharded arrays are processed shard by shard, without a gather (for
weights of several heads, arrays sharded along heads); sums over rows take one all-reduce. Sharded
columns are not gathered either in norms, softmax and their gradients, which take one small
all-reduce of each row's statistics (softmax forward: two), nor in ``relu2``, embedding and
``gated_activation`` with separate gate and up, which take none. Inside shard_map the vocabulary of
``vocab_parallel_cross_entropy`` and ``linear_cross_entropy`` may be sharded. XLA silently gathers
the rest: sharded columns of ``cross_entropy``, of ops with quantised results, of gate and up packed
in one array, and of heads in ``rope`` and ``qk_norm_rope``; normalised axes other than the first,
where there are several; rows of an embedding's table; axes that ``jax.vmap`` maps; and summed axes
that the number of devices does not divide.
"""

from membound import (
    _spellings,
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
from membound.jax import _elementwise
from membound.jax._cross_entropy import cross_entropy, cross_entropy_backward
from membound.jax._elementwise import *  # noqa: F403 - written by the build
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
from membound.jax._linear_cross_entropy import (
    linear_cross_entropy,
    vocab_parallel_cross_entropy,
)
from membound.jax._log_probs import linear_log_probs
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
    "linear_cross_entropy",
    "linear_log_probs",
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
    "vocab_parallel_cross_entropy",
]
__all__ += _elementwise.__all__


def __getattr__(name: str) -> object:
    raise _spellings.missing_attribute(name, __all__, __name__)
