# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""The back end of ``cpu()``: Array, compact, ewise_add ... as the course names them."""

from membound.needle._backend import TILE, functions, matmul_tiled

globals().update(functions("cpu", "cpu"), __tile_size__=TILE, matmul_tiled=matmul_tiled)
