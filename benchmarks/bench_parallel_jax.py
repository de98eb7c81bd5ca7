# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.jax on arrays that all devices share: time, collectives, and errors.

    python benchmarks/bench_parallel_jax.py
    python benchmarks/bench_parallel_jax.py --rows 16      # on a CPU that XLA_FLAGS splits

Every row is a result and its gradients under jax.jit, with rows, heads or columns sharded: ours,
the same in jax.numpy, and ours on one device that has as many bytes as each device has of the
sharded arrays. Times are of 20 calls in a row, the median of seven. Errors are a part of the norm
of a result or gradient, against ours on one device. Collectives are those of the compiled program.
"""

from __future__ import annotations

import argparse
import collections
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import membound.jax as mbj
from membound._table import render

CALLS, ROUNDS = 20, 7
HEADER = ("op", "sharded", "ours, us", "jax.numpy, us", "one device, us", "collectives", "error")


def rms_norm(x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide *= jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * weight).astype(x.dtype)


def gated(gate: Any, up: Any) -> Any:
    wide = gate.astype(jnp.float32)
    return (wide * jax.nn.sigmoid(wide) * up).astype(gate.dtype)


def rope(q: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(q.astype(jnp.float32), 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    turned = first * cos - second * sin, second * cos + first * sin
    return jnp.concatenate(turned, -1).astype(q.dtype)


def ours_of_rope(q: Any, cos: Any, sin: Any) -> Any:
    return mbj.rope(q, None, cos, sin)


def cases(rows: int, devices: int) -> list[tuple[Any, ...]]:
    """Op, sharded axis, ours, jax.numpy's, shapes, and how many of them are sharded."""
    x, wide = (rows * devices, 4096), (rows, 4096 * devices)
    norm = "rms_norm", lambda x, w: mbj.rms_norm(x, w, eps=1e-6), rms_norm
    act = "gated_activation", mbj.gated_activation, gated
    turn = "rope", ours_of_rope, rope
    cut = (1, max(1, rows // 2), 32 * devices, 128)
    table = (cut[1], 64)
    return [
        ("rows", *norm, (x, x[1:]), (P("a"), P())),
        ("columns", *norm, (wide, wide[1:]), (P(None, "a"), P("a"))),
        ("rows", *act, (x, x), (P("a"), P("a"))),
        ("heads", *turn, (cut, table, table), (P(None, None, "a"), P(), P())),
    ]


def both_ways(function: Callable[..., Any], count: int) -> Any:
    """The result, and its gradients by the first arrays."""

    def call(slope: Any, *arrays: Any) -> Any:
        found, pull = jax.vjp(lambda *first: function(*first, *arrays[count:]), *arrays[:count])
        return found, *pull(slope)

    return jax.jit(call)


def microseconds(run: Callable[..., Any], arrays: Any) -> float:
    taken = []
    for _ in range(ROUNDS):
        jax.block_until_ready(run(*arrays))
        start = time.perf_counter()
        for _ in range(CALLS):
            found = run(*arrays)
        jax.block_until_ready(found)
        taken.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(taken)


def collectives(compiled: Any) -> str:
    found = re.findall(
        r"\s(all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(", compiled.as_text()
    )
    return ", ".join(f"{n} {name}" for name, n in sorted(collections.Counter(found).items()))


def measure(case: tuple[Any, ...], mesh: Any) -> list[str]:
    axis, name, ours, theirs, shapes, specs = case
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)
    arrays = [
        jax.random.normal(key, shape, jnp.bfloat16 if len(shape) > 1 else jnp.float32)
        for key, shape in zip(keys, (shapes[0], *shapes), strict=True)
    ]
    arrays = [jax.device_put(array, jax.devices()[0]) for array in arrays]
    specs = (specs[0], *specs)
    placed = [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, specs, strict=True)
    ]
    count = 1 if name == "rope" else len(shapes)
    own, peer = both_ways(ours, count), both_ways(theirs, count)
    program = own.lower(*placed).compile()
    errors = [
        jnp.linalg.norm((got - right).astype(jnp.float32).ravel())
        / jnp.linalg.norm(right.astype(jnp.float32).ravel())
        for got, right in zip(
            jax.device_put(program(*placed), jax.devices()[0]), own(*arrays), strict=True
        )
    ]
    part = [
        array[tuple(slice(0, n // (mesh.size if cut else 1)) for n, cut in cuts(array, spec))]
        for array, spec in zip(arrays, specs, strict=True)
    ]
    times = microseconds(program, placed), microseconds(peer, placed), microseconds(own, part)
    cells = [f"{us:.0f}" for us in times]
    return [name, axis, *cells, collectives(program), f"{jnp.stack(errors).max():.0e}"]


def cuts(array: Any, spec: Any) -> list[tuple[int, bool]]:
    """The length of each axis, and whether it is sharded."""
    names = [*spec, *(None for _ in range(array.ndim - len(spec)))]
    return [(n, name is not None) for n, name in zip(array.shape, names, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65536, help="of each device")
    options = parser.parse_args()
    mesh = Mesh(jax.devices(), ("a",))
    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}")
    rows = [measure(case, mesh) for case in cases(options.rows, jax.device_count())]
    print(render(HEADER, rows))


if __name__ == "__main__":
    main()
