# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Fused kernels for memory-bound ops on torch, JAX, CuPy and NumPy arrays, on CPU and CUDA.

A function takes the arrays of one framework and returns arrays of the same, on the same device.
Arrays come first, options by name, ``out=`` writes to an array of yours:

    y = membound.rms_norm(x, weight, eps=1e-6)
    y, residual = membound.add_rms_norm(x, residual, weight)
    q, k = membound.rope(q, k, cos, sin)
    membound.silu_and_mul(gate_up, out=y)
    loss = membound.cross_entropy(logits, labels, reduction="mean", dlogits=logits)

Norms         rms_norm, add_rms_norm, layer_norm, add_layer_norm, rms_norm_gated
Activations   gated_activation, silu_and_mul, gelu_and_mul, gelu_tanh_and_mul, sigmoid_and_mul,
              relu2
Rotary        rope, qk_norm_rope; tables: rope_table, rope_frequencies
Embedding     embedding
Losses        softmax, cross_entropy, soft_cap
8-bit results rms_norm_quant, add_rms_norm_quant, gated_activation_quant, silu_and_mul_quant
Other names   fused_add_rms_norm, gemma_rms_norm, gemma_fused_add_rms_norm
Gradients     <name>_backward of each with a gradient
The machine   cuda_status, device_properties, cpu_isa, cpu_threads, set_cpu_threads
NumPy on GPUs device="cuda" of a call; staging_options, set_staging_options, cached_staging_bytes,
              release_staging
Modules       membound.torch: nn.Modules, patch(model), functions for compiled code
              membound.jax: functions for jit, grad and sharding
              membound.ndarray: an array with the functions of the array-API standard
              membound.autograd: gradients of functions on such arrays
              membound.needle: the array of CMU's deep learning systems course

Gradients of torch tensors are recorded. ``help(membound.rms_norm)`` and so on have shapes, dtypes,
aliasing, errors and an example.
On the command line: ``python -m membound info``, ``check`` and ``bench``.
"""

import importlib

from membound import _spellings
from membound._core import (
    CudaError,
    CudaStatus,
    DeviceProperties,
    StagingOptions,
    __version__,
    add_layer_norm,
    add_layer_norm_backward,
    add_rms_norm,
    add_rms_norm_backward,
    add_rms_norm_quant,
    cached_staging_bytes,
    cpu_isa,
    cpu_threads,
    cross_entropy,
    cross_entropy_backward,
    cuda_status,
    device_properties,
    embedding,
    embedding_backward,
    fused_add_rms_norm,
    gated_activation,
    gated_activation_backward,
    gated_activation_quant,
    gelu_and_mul,
    gelu_and_mul_backward,
    gelu_tanh_and_mul,
    gelu_tanh_and_mul_backward,
    gemma_fused_add_rms_norm,
    gemma_rms_norm,
    layer_norm,
    layer_norm_backward,
    qk_norm_rope,
    qk_norm_rope_backward,
    release_staging,
    relu2,
    relu2_backward,
    rms_norm,
    rms_norm_backward,
    rms_norm_gated,
    rms_norm_gated_backward,
    rms_norm_quant,
    rope,
    rope_backward,
    set_cpu_threads,
    set_staging_options,
    sigmoid_and_mul,
    sigmoid_and_mul_backward,
    silu_and_mul,
    silu_and_mul_backward,
    silu_and_mul_quant,
    soft_cap,
    soft_cap_backward,
    softmax,
    softmax_backward,
    staging_options,
)
from membound._rope_table import rope_frequencies, rope_table

__all__ = [
    "CudaError",
    "CudaStatus",
    "DeviceProperties",
    "StagingOptions",
    "__version__",
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "add_rms_norm_quant",
    "cached_staging_bytes",
    "cpu_isa",
    "cpu_threads",
    "cross_entropy",
    "cross_entropy_backward",
    "cuda_status",
    "device_properties",
    "embedding",
    "embedding_backward",
    "fused_add_rms_norm",
    "gated_activation",
    "gated_activation_backward",
    "gated_activation_quant",
    "gelu_and_mul",
    "gelu_and_mul_backward",
    "gelu_tanh_and_mul",
    "gelu_tanh_and_mul_backward",
    "gemma_fused_add_rms_norm",
    "gemma_rms_norm",
    "layer_norm",
    "layer_norm_backward",
    "qk_norm_rope",
    "qk_norm_rope_backward",
    "release_staging",
    "relu2",
    "relu2_backward",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_gated",
    "rms_norm_gated_backward",
    "rms_norm_quant",
    "rope",
    "rope_backward",
    "rope_frequencies",
    "rope_table",
    "set_cpu_threads",
    "set_staging_options",
    "sigmoid_and_mul",
    "sigmoid_and_mul_backward",
    "silu_and_mul",
    "silu_and_mul_backward",
    "silu_and_mul_quant",
    "soft_cap",
    "soft_cap_backward",
    "softmax",
    "softmax_backward",
    "staging_options",
]


def __getattr__(name: str) -> object:
    if name in ("autograd", "ndarray"):  # most programs need neither
        return importlib.import_module(f"membound.{name}")
    raise _spellings.missing_attribute(name, __all__)


# doctest does not look into builtins by itself.
__test__ = {name: globals()[name] for name in __all__ if isinstance(globals()[name], type(len))}
