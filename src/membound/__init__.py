# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Fused kernels for memory-bound ops on torch, JAX, CuPy and NumPy arrays, on CPU and CUDA."""

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
    cached_staging_bytes,
    cpu_isa,
    cpu_threads,
    cuda_status,
    device_properties,
    fused_add_rms_norm,
    gemma_fused_add_rms_norm,
    gemma_rms_norm,
    layer_norm,
    layer_norm_backward,
    release_staging,
    rms_norm,
    rms_norm_backward,
    set_cpu_threads,
    set_staging_options,
    staging_options,
)

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
    "cached_staging_bytes",
    "cpu_isa",
    "cpu_threads",
    "cuda_status",
    "device_properties",
    "fused_add_rms_norm",
    "gemma_fused_add_rms_norm",
    "gemma_rms_norm",
    "layer_norm",
    "layer_norm_backward",
    "release_staging",
    "rms_norm",
    "rms_norm_backward",
    "set_cpu_threads",
    "set_staging_options",
    "staging_options",
]

# doctest does not look into builtins by itself.
__test__ = {
    op.__name__: op
    for op in (
        rms_norm,
        rms_norm_backward,
        add_rms_norm,
        add_rms_norm_backward,
        layer_norm,
        layer_norm_backward,
        add_layer_norm,
        add_layer_norm_backward,
        fused_add_rms_norm,
        gemma_rms_norm,
        gemma_fused_add_rms_norm,
    )
}
