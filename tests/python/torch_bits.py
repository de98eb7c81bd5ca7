# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""torch arrays bit by bit, rows that are hard to norm, and arrays as the kernels of any layout read
them. Imported without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def every_second_column(values: torch.Tensor) -> torch.Tensor:
    """The same values where they are read element by element."""
    import torch

    return torch.stack((values, values), dim=-1)[..., 0]


def hard(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows with sums of squares out of range, or first elements far from their mean."""
    import torch

    rows = len(x)
    for row in (0, 5, 6, rows // 2, rows - 1):
        x[row] *= 1e20 if dtype != torch.float16 else 1e-6
    for row in (5, 7, 40, rows - 2):
        x[row, :8] += 50
    x[9] = 0
    x[11, 3] = torch.nan
    return x.to(dtype)
