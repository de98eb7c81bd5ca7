# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Fused kernels for memory-bound ops on torch, JAX, CuPy and NumPy arrays, on CPU and CUDA."""

from membound._core import (
    CudaError,
    CudaStatus,
    DeviceProperties,
    __version__,
    cpu_isa,
    cpu_threads,
    cuda_status,
    device_properties,
    rms_norm,
    set_cpu_threads,
)

__all__ = [
    "CudaError",
    "CudaStatus",
    "DeviceProperties",
    "__version__",
    "cpu_isa",
    "cpu_threads",
    "cuda_status",
    "device_properties",
    "rms_norm",
    "set_cpu_threads",
]
