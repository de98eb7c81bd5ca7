# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` runs for rms_norm: ours, a copy of the same bytes, and the frameworks' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import membound
from membound._frameworks import Framework

EPS = 1e-6

GPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (16384, 4096)]
GPU_SIZES += [(8192, 8192), (8192, 16384), (2048, 65536), (524288, 128)]
CPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096)]

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def bytes_moved(rows: int, cols: int, dtype: str) -> int:
    """Read once, written once."""
    return 2 * rows * cols * ITEM_BYTES[dtype]


Contestants = dict[str, list[Callable[[], Any]]]


def on_torch(torch: Any, device: str, rows: int, cols: int, dtype: str, sets: int) -> Contestants:
    kind = getattr(torch, dtype)
    x = torch.randn(sets, rows, cols, device=device, dtype=torch.float32).to(kind)
    out = torch.empty_like(x)
    weight = torch.ones(cols, device=device, dtype=kind)
    pairs = [(x[at], out[at]) for at in range(sets)]
    native = torch.nn.functional.rms_norm
    return {
        "membound": [
            lambda a=a, b=b: membound.rms_norm(a, weight, eps=EPS, out=b) for a, b in pairs
        ],
        "copy": [lambda a=a, b=b: b.copy_(a) for a, b in pairs],
        "torch": [lambda a=a: native(a, (cols,), weight, EPS) for a, _ in pairs],
    }


def on_numpy_like(
    np: Any, one: Framework, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    """NumPy and CuPy: both have copyto, and neither has an RMSNorm of its own."""
    draw = np.random.default_rng(0).standard_normal
    weight = one.array([1.0] * cols, (cols,), dtype)
    x = [draw((rows, cols), dtype=np.float32).astype(weight.dtype) for _ in range(sets)]
    pairs = [(a, np.empty_like(a)) for a in x]

    def formula(a: Any) -> Any:
        wide = a.astype(np.float64 if dtype == "float64" else np.float32)
        rstd = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + EPS)
        return (wide * rstd * weight).astype(a.dtype)

    contestants = {
        "membound": [
            lambda a=a, b=b: membound.rms_norm(a, weight, eps=EPS, out=b) for a, b in pairs
        ],
        "copy": [lambda a=a, b=b: np.copyto(b, a) for a, b in pairs],
    }
    if one.name == "numpy":
        contestants["numpy"] = [lambda a=a: formula(a) for a, _ in pairs]
    return contestants


def on_jax(jax: Any, device: Any, rows: int, cols: int, dtype: str, sets: int) -> Contestants:
    """Only the formula under jit; ours is measured on the arrays of the other framework."""
    jnp = jax.numpy

    @jax.jit
    def formula(a: Any, weight: Any) -> Any:
        wide = a.astype(jnp.float64 if dtype == "float64" else jnp.float32)
        rstd = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPS)
        return (wide * rstd * weight).astype(a.dtype)

    with jax.default_device(device):
        x = [jnp.full((rows, cols), 1.0 + at, dtype) for at in range(sets)]
        weight = jnp.ones(cols, dtype)
    return {"jax": [lambda a=a: formula(a, weight).block_until_ready() for a in x]}
