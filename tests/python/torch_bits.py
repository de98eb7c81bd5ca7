# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""torch arrays bit by bit, and as the kernels of any layout read them. Imported without torch."""

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
