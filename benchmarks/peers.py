# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Other libraries' ops, each behind the same call, when they are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch

# Takes x and a buffer that the peer may write its result to.
Peer = Callable[[torch.Tensor, torch.Tensor], Any]
Maker = Callable[[torch.Tensor, float], Peer]


def hugging_face(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """LlamaRMSNorm's forward."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _torch(weight: torch.Tensor, eps: float) -> Peer:
    return lambda x, _: torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def _compile(weight: torch.Tensor, eps: float) -> Peer:
    torch._dynamo.reset()
    compiled = torch.compile(hugging_face, dynamic=False)
    return lambda x, _: compiled(x, weight, eps)


def _liger(weight: torch.Tensor, eps: float) -> Peer:
    norm = importlib.import_module("liger_kernel.transformers.functional").liger_rms_norm
    return lambda x, _: norm(x, weight, eps)


def _quack(weight: torch.Tensor, eps: float) -> Peer:
    norm = importlib.import_module("quack").rmsnorm
    return lambda x, _: norm(x, weight, eps=eps)


def _flashinfer(weight: torch.Tensor, eps: float) -> Peer:
    norm = importlib.import_module("flashinfer").rmsnorm
    return lambda x, out: norm(x, weight, eps, out=out)


RMS_NORM: dict[str, tuple[str, Maker]] = {
    "torch": ("torch", _torch),
    "compile": ("torch", _compile),
    "liger": ("liger_kernel", _liger),
    "quack": ("quack-kernels", _quack),
    "flashinfer": ("flashinfer-python", _flashinfer),
}


def installed(names: list[str], makers: dict[str, tuple[str, Maker]]) -> dict[str, str]:
    """The version of each named peer that is here."""
    found = {}
    for name in names:
        distribution = makers[name][0]
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
