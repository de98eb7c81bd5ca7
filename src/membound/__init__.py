# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Fused kernels for memory-bound ops on torch, JAX, CuPy and NumPy arrays, on CPU and CUDA."""

from membound._core import (
    CudaError,
    CudaStatus,
    DeviceProperties,
    StagingOptions,
    __version__,
    cached_staging_bytes,
    cpu_isa,
    cpu_threads,
    cuda_status,
    device_properties,
    release_staging,
    rms_norm,
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
    "cached_staging_bytes",
    "cpu_isa",
    "cpu_threads",
    "cuda_status",
    "device_properties",
    "release_staging",
    "rms_norm",
    "set_cpu_threads",
    "set_staging_options",
    "staging_options",
]

__test__ = {"rms_norm": rms_norm}  # doctest does not look into builtins by itself
