# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What `bench` times: each op on rotating sets of buffers, against a copy and other frameworks.

An op's module says which matrices it reads and writes, and gives one call each:

    READ, WRITTEN       names of its matrices
    QUANTISED           optional: the matrices that it writes in int8, with one scale per row;
                        new_results(a) allocates both
    CENTRED             norms only: whether the statistics are those of layer_norm
    ours(a)             membound's call on one set of arrays
    torch_call(F, a)    torch's call, or None; F is torch.nn.functional
    formula(np, a, wide)    the results by NumPy's or JAX's functions; wide() converts for sums

A set of arrays holds the matrices by name, weight, bias, mean, rstd, scale and eps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import membound
from membound._frameworks import Framework

EPS = 1e-6
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

Contestants = dict[str, list[Callable[[], Any]]]


def quantised(op: ModuleType) -> tuple[str, ...]:
    return getattr(op, "QUANTISED", ())


def set_statistics(op: ModuleType, a: Any) -> None:
    """Add the statistics that a backward reads and the scales that a quantised forward writes."""
    if quantised(op):
        a.out, a.scale = op.new_results(a)
    if not hasattr(op, "CENTRED"):
        return
    if op.CENTRED:
        _, a.mean, a.rstd = membound.layer_norm(a.x, eps=EPS, return_stats=True)
    else:
        a.rstd = membound.rms_norm(a.x, eps=EPS, return_rstd=True)[1]


def bytes_moved(op: ModuleType, rows: int, cols: int, dtype: str) -> int:
    """Bytes moved if every matrix is read or written once."""
    row = (len(op.READ) + len(op.WRITTEN)) * ITEM_BYTES[dtype] + len(quantised(op))
    return row * rows * cols


def copied_elements(op: ModuleType, rows: int, cols: int, dtype: str) -> int:
    """How many elements a copy reads, and writes, if it moves the same number of bytes."""
    return -(-bytes_moved(op, rows, cols, dtype) // (2 * ITEM_BYTES[dtype]))


def on_torch(
    op: ModuleType, torch: Any, device: str, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    kind = getattr(torch, dtype)
    empty = partial(torch.empty, device=device, dtype=kind)

    def arrays() -> SimpleNamespace:
        a = SimpleNamespace(weight=weight, bias=bias, eps=EPS)
        for name in op.READ:
            setattr(a, name, torch.randn(rows, cols, device=device).to(kind))
        for name in op.WRITTEN:
            setattr(a, name, empty(rows, cols))
        set_statistics(op, a)
        return a

    weight, bias = (torch.ones(cols, device=device, dtype=kind) for _ in range(2))
    every = [arrays() for _ in range(sets)]
    count = copied_elements(op, rows, cols, dtype)
    copies = [(empty(count).zero_(), empty(count)) for _ in range(sets)]
    contestants = {
        "membound": [partial(op.ours, a) for a in every],
        "copy": [partial(into.copy_, source) for source, into in copies],
    }
    theirs = [op.torch_call(torch, a) for a in every]
    if None not in theirs:
        contestants["torch"] = theirs
    return contestants


def on_numpy_like(
    op: ModuleType, np: Any, one: Framework, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    """NumPy and CuPy contestants: both have copyto, and neither has norms of its own."""
    draw = np.random.default_rng(0).standard_normal
    weight, bias = (one.array([1.0] * cols, (cols,), dtype) for _ in range(2))

    def arrays() -> SimpleNamespace:
        a = SimpleNamespace(weight=weight, bias=bias, eps=EPS)
        for name in op.READ:
            setattr(a, name, draw((rows, cols), dtype=np.float32).astype(weight.dtype))
        for name in op.WRITTEN:
            setattr(a, name, np.empty((rows, cols), weight.dtype))
        set_statistics(op, a)
        return a

    every = [arrays() for _ in range(sets)]
    count = copied_elements(op, rows, cols, dtype)
    copies = [(np.zeros(count, weight.dtype), np.empty(count, weight.dtype)) for _ in range(sets)]
    contestants = {
        "membound": [partial(op.ours, a) for a in every],
        "copy": [partial(np.copyto, into, source) for source, into in copies],
    }
    if one.name == "numpy":
        wide = np.float64 if dtype == "float64" else np.float32
        contestants["numpy"] = [partial(op.formula, np, a, wide) for a in every]
    return contestants


def on_jax(
    op: ModuleType, jax: Any, device: Any, rows: int, cols: int, dtype: str, sets: int
) -> Contestants:
    """Times only the formula under jit; ours is measured on the arrays of the other framework."""
    jnp = jax.numpy
    names = (*op.READ, "weight", "bias", "mean", "rstd")
    wide = jnp.float64 if dtype == "float64" else jnp.float32

    @jax.jit
    def formula(*values: Any) -> Any:
        return op.formula(
            jnp, SimpleNamespace(eps=EPS, **dict(zip(names, values, strict=True))), wide
        )

    with jax.default_device(device):
        weight, rstd = jnp.ones(cols, dtype), jnp.ones(rows, wide)
        rest = (weight, weight, rstd, rstd)
        every = [
            (*(jnp.full((rows, cols), 1.0 + at, dtype) for _ in op.READ), *rest)
            for at in range(sets)
        ]
    return {"jax": [lambda a=a: jax.block_until_ready(formula(*a)) for a in every]}
