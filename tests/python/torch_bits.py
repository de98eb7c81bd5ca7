# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Bitwise comparison of torch arrays, rows that are numerically hard for norms, and arrays that the
generic kernels read. Importing it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def every_second_column(values: torch.Tensor) -> torch.Tensor:
    """The same values with a column stride of 2, which the generic kernels read by elements."""
    import torch

    return torch.stack((values, values), dim=-1)[..., 0]


def hard(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Make rows with sums of squares out of range, or first elements far from the mean."""
    import torch

    rows = len(x)
    for row in (0, 5, 6, rows // 2, rows - 1):
        x[row] *= 1e20 if dtype != torch.float16 else 1e-6
    for row in (5, 7, 40, rows - 2):
        x[row, :8] += 50
    x[9] = 0
    x[11, 3] = torch.nan
    return x.to(dtype)
