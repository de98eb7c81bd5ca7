# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Trials: whether one of our forms gives the result of a model's module."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class LeftAloneError(Exception):
    """Why a module keeps its own forward."""


@contextlib.contextmanager
def default_settings(device: str = "cpu") -> Iterator[torch.Generator]:
    """Run foreign code without the caller's autocast, default device or warnings."""
    kind = torch.device(device).type
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        torch.device(device),
        torch.autocast(kind, enabled=False),
    ):
        warnings.simplefilter("ignore")
        yield torch.Generator("cpu").manual_seed(0)


def draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)


def stand_in(
    module: nn.Module, parameters: dict[str, Any], buffers: dict[str, torch.Tensor]
) -> nn.Module:
    """A shallow copy with other tensors. Classes of FSDP2 cannot be created by copy.copy."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__, _parameters=parameters, _buffers=buffers)
    return twin


def close(got: torch.Tensor, wanted: torch.Tensor, cancels: bool = False) -> bool:
    """cancels: small results come from cancellation, with errors of the size of large ones."""
    if got.dtype != wanted.dtype or not wanted.is_floating_point():
        return False
    unit = torch.finfo(wanted.dtype).eps
    largest = float(wanted.abs().max()) if cancels else 1.0
    return torch.allclose(got.double(), wanted.double(), rtol=4 * unit, atol=4 * unit * largest)
