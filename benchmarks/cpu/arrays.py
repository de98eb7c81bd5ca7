# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""membound.ndarray beside NumPy on one thread: python benchmarks/cpu/arrays.py [name ...].

Both run in turns in one process; times are medians of thread CPU time, new results each call.
Permuted copies stand beside NumPy's plain copy of as many bytes.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import membound as mb
import membound.ndarray as nd

MILLION = 10**6
Case = tuple[str, Callable[[], object], Callable[[], object]]


def elements(dtype: str, count: int) -> Iterator[Case]:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, count)).astype(dtype)
    positive = np.abs(x) + 0.1
    a, b, c = nd.asarray(x), nd.asarray(y), nd.asarray(positive)
    what = f"{dtype} {count:.0e}"
    for name in ("add", "multiply", "divide", "maximum", "less"):
        own, numpy = getattr(nd, name), getattr(np, name)
        yield f"{name} {what}", lambda own=own: own(a, b), lambda numpy=numpy: numpy(x, y)
    for name in ("negative", "abs", "sqrt", "exp", "log", "sin", "cos", "tanh"):
        own, numpy = getattr(nd, name), getattr(np, name)
        yield f"{name} {what}", lambda own=own: own(c), lambda numpy=numpy: numpy(positive)
    for name in ("sum", "max", "argmax", "mean", "var"):
        own, numpy = getattr(nd, name), getattr(np, name)
        yield f"{name} {what}", lambda own=own: own(a), lambda numpy=numpy: numpy(x)
    rows, columns = x.reshape(1000, -1), a.reshape((1000, -1))
    yield f"sum of columns {what}", lambda: nd.sum(columns, axis=0), lambda: rows.sum(axis=0)
    yield f"max of columns {what}", lambda: nd.max(columns, axis=0), lambda: rows.max(axis=0)


def choices(dtype: str) -> Iterator[Case]:
    """Numbers as operands, indices, masks, repeated elements and ranges; x is of integers."""
    rng = np.random.default_rng(4)
    x, y = rng.integers(1, 100, (2, MILLION)).astype(dtype)
    places, mask = rng.integers(0, MILLION, MILLION), rng.random(MILLION) < 0.5
    a, b, indices, chosen = (nd.asarray(own) for own in (x, y, places, mask))
    wide = rng.integers(0, 2**30, MILLION).astype(dtype)
    far, of = nd.asarray(wide), f"{dtype} 1e+06"
    yield f"clip {of}", lambda: nd.clip(a, 20, 60), lambda: np.clip(x, 20, 60)
    yield f"where {of}", lambda: nd.where(chosen, a, b), lambda: np.where(mask, x, y)
    for times in (2, 3, 10, 100):
        name, own, theirs = f"repeat {times} {of}", a[: MILLION // times], x[: MILLION // times]
        yield (
            name,
            lambda own=own, times=times: nd.repeat(own, times),
            lambda theirs=theirs, times=times: np.repeat(theirs, times),
        )
    yield f"take {of}", lambda: nd.take(a, indices), lambda: np.take(x, places)
    yield f"x[i] = y {of}", lambda: a.__setitem__(indices, a), lambda: x.__setitem__(places, x)
    yield f"x[::2] + y[::2] {of}", lambda: a[::2] + b[::2], lambda: x[::2] + y[::2]
    yield f"argmax {of}", lambda: nd.argmax(a), lambda: np.argmax(x)
    yield f"cumulative_sum {of}", lambda: nd.cumulative_sum(a), lambda: np.cumsum(x)
    yield f"zeros {of}", lambda: nd.zeros(MILLION, dtype=dtype), lambda: np.zeros(MILLION, dtype)
    count = 100 if dtype == "uint8" else MILLION
    options = {"dtype": dtype}
    yield f"arange {of}", lambda: nd.arange(count, **options), lambda: np.arange(count, **options)
    for name in ("floor_divide", "remainder"):
        own, theirs = getattr(nd, name), getattr(np, name)
        yield f"{name} {of}", lambda own=own: own(a, b), lambda theirs=theirs: theirs(x, y)
        yield f"{name} by 7 {of}", lambda own=own: own(a, 7), lambda theirs=theirs: theirs(x, 7)
    for known in (4, 16, 1000):
        for kind, array, elements in ((of, a, x), (f"far apart {of}", far, wide)):
            sets = nd.asarray(elements[:known]), elements[:known]
            yield (
                f"isin {known} {kind}",
                lambda array=array, sets=sets: nd.isin(array, sets[0]),
                lambda elements=elements, sets=sets: np.isin(elements, sets[1]),
            )


def orders(dtype: str) -> Iterator[Case]:
    x = np.random.default_rng(2).standard_normal(MILLION).astype(dtype)
    a = nd.asarray(x)
    yield f"sort {dtype} 1e+06", lambda: nd.sort(a), lambda: np.sort(x)
    yield f"argsort {dtype} 1e+06", lambda: nd.argsort(a), lambda: np.argsort(x, kind="stable")


def products(dtype: str) -> Iterator[Case]:
    for side in (64, 512, 1024):
        x, y = np.random.default_rng(3).standard_normal((2, side, side)).astype(dtype)
        a, b = nd.asarray(x), nd.asarray(y)
        name = f"matmul {dtype} {side}"
        yield name, lambda a=a, b=b: a @ b, lambda x=x, y=y: x @ y
        yield f"{name} transposed", lambda a=a, b=b: a.mT @ b.mT, lambda x=x, y=y: x.T @ y.T


def copies(dtype: str) -> Iterator[Case]:
    for shape, axes in [
        ((4096, 4096), (1, 0)),
        ((4000, 4100), (1, 0)),
        ((256, 256, 256), (0, 2, 1)),
        ((256, 256, 256), (2, 1, 0)),
        ((256, 256, 256), (1, 0, 2)),
        ((2**22, 4), (1, 0)),
        ((64, 512, 8, 64), (0, 2, 1, 3)),
    ]:
        x = np.ones(shape, dtype)
        permuted = nd.permute_dims(nd.asarray(x), axes)
        name = f"permuted copy {dtype} {shape} {axes}"
        yield name, lambda permuted=permuted: permuted.copy(), lambda x=x: x.copy()


def cases() -> Iterator[Case]:
    for dtype in ("float32", "float64"):
        yield from elements(dtype, MILLION)
        yield from orders(dtype)
        yield from products(dtype)
    yield from elements("float32", 32 * MILLION)
    for dtype in ("float32", "float64", "uint8"):
        yield from copies(dtype)
    for dtype in ("float32", "float64", "int64", "int32", "uint8"):
        yield from choices(dtype)


def seconds_of(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start


def main(wanted: list[str]) -> None:
    mb.set_cpu_threads(1)
    print(f"{mb.cpu_isa()}, NumPy {np.__version__}; us, ratio = NumPy / membound")
    for name, own, numpy in cases():
        if wanted and not any(part in name for part in wanted):
            continue
        seconds_of(own)
        once = max(seconds_of(numpy), 1e-5)
        rounds = min(max(int(0.3 / once), 7), 101)
        pairs = [(seconds_of(own), seconds_of(numpy)) for _ in range(rounds)]
        ratio = statistics.median(theirs / max(ours, 1e-9) for ours, theirs in pairs)
        ours, theirs = (statistics.median(times) * 1e6 for times in zip(*pairs, strict=True))
        print(f"{name:55} {ours:10.0f} {theirs:10.0f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
