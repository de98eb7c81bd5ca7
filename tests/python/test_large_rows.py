# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Rows beyond 2^32 elements have the bits that a call on a few of them gives, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arrays
import pytest

import membound

COLS = 4096
ROWS_BEYOND_32_BITS = (1 << 32) // COLS + 3


def _drawn(torch: Any, *shape: int, device: str) -> Any:
    """Normal values in bfloat16, a slice at a time: torch's generator stops at 2^32 elements."""
    x = torch.empty(shape, device=device, dtype=torch.bfloat16)
    for first in range(0, shape[0], 1 << 16):
        x[first : first + (1 << 16)].normal_()
    return x


def _table(torch: Any, device: str) -> Any:
    angles = torch.arange(1024, device=device)[:, None] * torch.rand(64, device=device)
    return angles.cos(), angles.sin()


def _rope(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    heads = _drawn(torch, rows, COLS // 128, 128, device=device)
    ids = torch.arange(rows, device=device) % 1024
    cos, sin = _table(torch, device)
    return (heads, ids), lambda q, at: membound.rope(
        q, None, cos, sin, position_ids=at, layout="thd"
    )


def _qk_norm_rope(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    (heads, ids), _ = _rope(torch, rows, device)
    cos, sin = _table(torch, device)
    weight = torch.rand(128, device=device).bfloat16()
    k = heads[:, :1]
    return (heads, k, ids), lambda q, k, at: membound.qk_norm_rope(
        q, k, weight, weight, cos, sin, position_ids=at, layout="thd"
    )[0]


def _silu_and_mul(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    return (_drawn(torch, rows, COLS, device=device),) * 2, membound.silu_and_mul


def _softmax(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    return (_drawn(torch, rows, COLS, device=device),), membound.softmax


def _cross_entropy(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Any]:
    labels = torch.arange(rows, device=device) % COLS

    def gradient(logits: Any, labels: Any) -> Any:
        dlogits = torch.empty_like(logits)
        membound.cross_entropy(logits, labels, dlogits=dlogits)
        return dlogits

    return (_drawn(torch, rows, COLS, device=device), labels), gradient


def _embedding(torch: Any, rows: int, device: str) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    table = _drawn(torch, 1000, COLS, device=device)
    return (torch.arange(rows, device=device) % 1000,), lambda ids: membound.embedding(ids, table)


OPS = {
    "rope": _rope,
    "qk_norm_rope": _qk_norm_rope,
    "silu_and_mul": _silu_and_mul,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "embedding": _embedding,
}


def _assert_like_slices(torch: Any, op: str, rows: int, device: str, some: int) -> None:
    given, call = OPS[op](torch, rows, device)
    whole = call(*given)
    for first in (0, rows // 2, rows - some):  # the last lies beyond 2^32 elements
        part = call(*(one[first : first + some].clone() for one in given))
        assert torch.equal(whole[first : first + some], part), f"rows from {first}"
    assert not whole[-1].isnan().any()


@pytest.mark.parametrize("op", OPS)
def test_rows_alone_and_among_many(op, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed % 2**31)
    _assert_like_slices(torch, op, 70, "cpu", 7)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("op", OPS)
def test_rows_beyond_2_to_the_32_elements(op, seed):
    torch = arrays.torch_with_cuda()
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < 40:
        pytest.skip(f"needs 40 GB of GPU memory, {free:.0f} GB are free")
    torch.manual_seed(seed % 2**31)
    assert ROWS_BEYOND_32_BITS * COLS > 1 << 32
    _assert_like_slices(torch, op, ROWS_BEYOND_32_BITS, "cuda", 1000)
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_gradients_of_rows_2_gib_apart(norm, seed):
    """The row stride in bytes exceeds 32 bits."""
    torch = arrays.torch_with_cuda()
    rows, cols, step = 34, 131072, (1 << 30) + 8  # enough rows for the kernels for many rows
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < 80:
        pytest.skip(f"needs 80 GB of GPU memory, {free:.0f} GB are free")
    torch.manual_seed(seed % 2**31)
    x, dy = (torch.randn(rows, cols, device="cuda").bfloat16() for _ in range(2))
    weight = torch.rand(cols, device="cuda").bfloat16()
    mean, rstd = torch.zeros(rows, device="cuda"), torch.rand(rows, device="cuda") + 0.5
    apart = torch.empty(step * rows, device="cuda", dtype=torch.bfloat16)
    apart = apart.as_strided((rows, cols), (step, 1)).copy_(x)
    call = {
        "rms": lambda x: membound.rms_norm_backward(dy, x, weight, rstd),
        "layer": lambda x: membound.layer_norm_backward(dy, x, weight, mean, rstd),
    }[norm]
    for found, right in zip(call(apart), call(x), strict=True):
        assert torch.equal(found, right)
