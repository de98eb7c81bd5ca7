# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The array of CMU's deep learning systems course (dlsyscourse.org), needle, on membound's kernels.

    from membound.needle import backend_ndarray as nd

    x = nd.array([[1.0, 2.0], [3.0, 4.0]], device=nd.cuda())
    y = (x @ x).permute((1, 0)).compact()

Names and semantics are the course's: float32 only, views by strides and offset over a flat handle,
indexing that keeps dimensions. ``cpu_numpy`` and ``numpy_device`` are the homework's and the
lecture's name of one device. The back ends ``ndarray_backend_cpu``, ``ndarray_backend_cuda`` and
``ndarray_backend_numpy`` are modules with the functions that the course has its students write, so
an ndarray.py of your own can import them instead of its own.
"""

from membound.needle import backend_ndarray
from membound.needle.backend_ndarray import (
    NDArray,
    all_devices,
    array,
    cpu,
    cpu_numpy,
    cuda,
    default_device,
    numpy_device,
)

__all__ = [
    "NDArray",
    "all_devices",
    "array",
    "backend_ndarray",
    "cpu",
    "cpu_numpy",
    "cuda",
    "default_device",
    "numpy_device",
]
