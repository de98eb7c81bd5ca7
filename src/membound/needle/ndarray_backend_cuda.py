# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The back end of ``cuda()``; importing it raises ImportError where there is no GPU."""

from membound._core import cuda_status
from membound.needle._backend import TILE, functions

if cuda_status().device_count == 0:
    raise ImportError(f"ndarray_backend_cuda: {cuda_status().message}")
globals().update(functions("cuda", "cuda"), __tile_size__=TILE)
