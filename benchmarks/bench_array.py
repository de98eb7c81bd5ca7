# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of membound.ndarray on a GPU beside a copy of as many bytes, CuPy and NumPy.

    python benchmarks/bench_array.py            # 64 and 256 MiB, host time, matrix products
    python benchmarks/bench_array.py --quick    # 64 MiB, two dtypes
    python benchmarks/bench_array.py --only training   # AdamW beside torch's, stencils

Time is that of calls in a row that fill the GPU, results allocated, divided by their number: the
median of five such rows. The copy moves as many bytes as the function reads and writes.
`MEMBOUND_CUBLAS=off` times our own matrix product instead of cuBLAS.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cupy
import numpy

import membound.ndarray as nd
from membound._table import render

DEVICE = cupy.cuda.Device()


class Case(NamedTuple):
    name: str
    dtype: str
    moved: int  # bytes
    ours: Callable[[], Any]
    cupy: Callable[[], Any] | None
    numpy: Callable[[], Any] | None


def microseconds(call: Callable[[], Any], budget: float = 2e-3) -> float:
    """Time of a call among others, the GPU never idle."""
    call()
    DEVICE.synchronize()
    start = time.perf_counter()
    call()
    DEVICE.synchronize()
    count = max(3, min(200, round(budget / (time.perf_counter() - start))))
    rows = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        DEVICE.synchronize()
        rows.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(rows)


def once(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def copy_of(moved: int) -> float:
    half = max(1, moved // 2)
    source, target = (cupy.zeros(half, dtype=cupy.uint8) for _ in range(2))
    return microseconds(lambda: cupy.copyto(target, source))


def operands(elements: int, dtype: str) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Two arrays of ours, of CuPy and of NumPy each; ours share CuPy's memory."""
    make = numpy.random.default_rng(0)
    if dtype == "int8":
        host = [make.integers(-9, 9, elements, dtype=dtype) for _ in range(2)]
    else:
        host = [make.random(elements, dtype="float32").astype(dtype) for _ in range(2)]
    device = [cupy.asarray(one) for one in host]
    return (*(nd.from_dlpack(one) for one in device), *device, *host)


def cases(mebibytes: int, dtype: str) -> Iterator[Case]:
    size = numpy.dtype(dtype).itemsize
    elements = (mebibytes << 20) // size
    x, y, cx, cy, hx, hy = operands(elements, dtype)
    width = 4096

    def case(name: str, parts: float, function: Callable[[Any, Any, Any], Any]) -> Case:
        return Case(
            name,
            dtype,
            int(parts * elements * size),
            lambda: function(nd, x, y),
            lambda: function(cupy, cx, cy),
            lambda: function(numpy, hx, hy),
        )

    def matrix(a: Any) -> Any:
        return a.reshape((-1, width))

    yield case("x + y", 3, lambda _m, a, b: a + b)
    yield case("x < y", 2 + 1 / size, lambda _m, a, b: a < b)
    if dtype != "int8":
        yield case("exp(x)", 2, lambda m, a, _b: m.exp(a))
    yield case("x + row", 2, lambda _m, a, b: matrix(a) + b[:width])
    yield case("sum", 1, lambda m, a, _b: m.sum(a))
    yield case("sum of rows", 1, lambda m, a, _b: m.sum(matrix(a), axis=1))
    yield case("sum of columns", 1, lambda m, a, _b: m.sum(matrix(a), axis=0))
    yield case("max", 1, lambda m, a, _b: m.max(a))
    yield case("argmax of rows", 1, lambda m, a, _b: m.argmax(matrix(a), axis=1))
    if dtype != "int8":
        yield case("var of rows", 2, lambda m, a, _b: m.var(matrix(a), axis=1))
    yield permuted(case, "copy of x.T", lambda _m, a: matrix(a).T)
    cube = (64, 128, -1)
    for order in ((2, 0, 1), (1, 2, 0), (1, 0, 2)):
        yield permuted(
            case,
            f"copy of permuted {order}",
            lambda m, a, order=order: (
                m.permute_dims(a.reshape(cube), order)
                if m is nd
                else a.reshape(cube).transpose(order)
            ),
        )
    yield case(
        "cumulative sum", 2, lambda m, a, _b: m.cumulative_sum(a) if m is nd else m.cumsum(a)
    )


def permuted(case: Callable[..., Case], name: str, view: Callable[[Any, Any], Any]) -> Case:
    def copied(m: Any, a: Any, _: Any) -> Any:
        one = view(m, a)
        return one.copy() if m is nd else m.ascontiguousarray(one)

    return case(name, 2, copied)


def bandwidth(sizes: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    rows = []
    for mebibytes in sizes:
        for dtype in dtypes:
            for case in cases(mebibytes, dtype):
                copy, ours = copy_of(case.moved), microseconds(case.ours)
                theirs = microseconds(case.cupy) if case.cupy else float("nan")
                host = once(case.numpy) if case.numpy and mebibytes == 64 else float("nan")
                rows.append(
                    [
                        case.name, dtype, str(mebibytes), f"{ours:.1f}", f"{copy:.1f}",
                        f"{copy / ours:.3f}", f"{theirs:.1f}", f"{theirs / ours:.2f}",
                        f"{host:.0f}",
                    ]
                )  # fmt: skip
            cupy.get_default_memory_pool().free_all_blocks()
    header = ["function", "dtype", "MiB", "ours", "copy", "copy/ours", "CuPy", "CuPy/ours", "NumPy"]
    print(render(header, rows), flush=True)


def host_time() -> None:
    """Host time of a call on 64 elements: 200 calls, the GPU idle at the start."""
    x, y, cx, cy, *_ = operands(64, "float32")
    calls: dict[str, Callable[[], Any]] = {
        "ours x + y": lambda: x + y,
        "CuPy x + y": lambda: cx + cy,
        "ours x + 2.0": lambda: x + 2.0,
        "CuPy x + 2.0": lambda: cx + 2.0,
        "ours exp(x)": lambda: nd.exp(x),
        "ours sum(x)": lambda: nd.sum(x),
        "CuPy sum(x)": lambda: cupy.sum(cx),
        "ours x[3:9]": lambda: x[3:9],
    }
    rows = []
    for name, call in calls.items():
        times = []
        for _ in range(50):
            DEVICE.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            times.append((time.perf_counter() - start) / 200 * 1e6)
        DEVICE.synchronize()
        rows.append([name, f"{statistics.median(times):.2f}"])
    print(render(["host time", "us"], rows), flush=True)


def products(sides: tuple[int, ...]) -> None:
    rows = []
    for dtype in ("float16", "bfloat16", "float32"):
        for side in sides:
            # CuPy has no bfloat16 of its own; float16 takes as long.
            a, b = (
                cupy.random.random((side, side), dtype=cupy.float32).astype(
                    dtype if dtype != "bfloat16" else cupy.float16
                )
                for _ in range(2)
            )
            x, y = (nd.from_dlpack(one) for one in (a, b))
            if dtype == "bfloat16":
                x, y = (nd.astype(one, nd.bfloat16) for one in (x, y))
            for name, ours, theirs in (
                ("a @ b", lambda: x @ y, lambda: a @ b),  # noqa: B023
                ("a @ b.T", lambda: x @ y.T, lambda: a @ b.T),  # noqa: B023
            ):
                mine, its = microseconds(ours, 2e-2), microseconds(theirs, 2e-2)
                rate = 2e-6 * side**3 / mine
                rows.append(
                    [name, dtype, str(side), f"{mine:.1f}", f"{rate:.0f}", f"{its:.1f}",
                     f"{its / mine:.3f}"]
                )  # fmt: skip
    header = ["product", "dtype", "side", "ours us", "TFLOP/s", "CuPy us", "CuPy/ours"]
    print(render(header, rows), flush=True)


def training(parameters: int) -> None:
    """AdamW over many parameters and few, and stencils with their gradients."""
    rows = []

    def add(name: str, moved: int, ours: Any, theirs: Any, peer: str) -> None:
        copy, mine = copy_of(moved), microseconds(ours, 2e-2)
        its = microseconds(theirs, 2e-2) if theirs else float("nan")
        rows.append([name, f"{moved / 2**20:.0f}", f"{mine:.1f}", f"{copy:.1f}",
                     f"{copy / mine:.3f}", peer, f"{its:.1f}"])  # fmt: skip
        cupy.get_default_memory_pool().free_all_blocks()

    for count, dtype in ((1, "float32"), (1, "bfloat16"), (600, "float32")):
        size = parameters // count
        kind = {"dtype": dtype, "device": "cuda"}
        arrays = [[nd.full(size, 0.5, **kind) for _ in range(count)] for _ in range(2)]
        state = {"dtype": "float32", "device": "cuda"}
        arrays += [[nd.zeros(size, **state) for _ in range(count)] for _ in range(2)]
        item = arrays[0][0].dtype.itemsize
        add(
            f"AdamW, {count} of {size} {dtype}",
            count * size * (3 * item + 4 * 4),
            lambda arrays=arrays: nd.adamw(*arrays, lr=1e-3, step=3),
            torch_adamw(count, size) if dtype == "float32" else None,
            "torch, fused",
        )
        del arrays
    for shape, axis, radius in (
        ((1 << 25,), 0, 3),
        ((4096, 8192), 0, 3),
        ((1 << 20, 32), 0, 1),
        ((1 << 18, 128), 1, 1),
        ((1 << 25,), 0, 20),
    ):
        cx = cupy.random.random(shape, dtype=cupy.float32)
        cw = cupy.random.random(2 * radius + 1, dtype=cupy.float32)
        x, w = nd.from_dlpack(cx), nd.from_dlpack(cw)
        label = f"{shape} axis {axis}, {2 * radius + 1} weights"
        add(
            f"stencil {label}",
            2 * cx.nbytes,
            lambda: nd.stencil_1d(x, w, axis=axis, boundary="zero"),  # noqa: B023
            scipy_stencil(cx, cw, axis),
            "cupyx correlate1d",
        )
        add(
            f"its gradients {label}",
            4 * cx.nbytes,
            lambda: nd.stencil_1d_backward(x, x, w, axis=axis, boundary="zero"),  # noqa: B023
            None,
            "",
        )
    header = ["function", "MiB moved", "ours us", "copy us", "copy/ours", "peer", "peer us"]
    print(render(header, rows), flush=True)


def searches(wanted: int) -> None:
    """Places of random numbers in a sorted vector, and which of them are in it."""
    rows = []
    make = cupy.random.default_rng(0)
    for dtype in ("float32", "float64", "int64"):
        for length in (100, wanted >> 4, wanted):
            ordered, random = ((make.random(size) * 1e9).astype(dtype) for size in (length, wanted))
            ordered.sort()
            x, y = nd.from_dlpack(ordered), nd.from_dlpack(random)
            for name, ours, theirs in (
                ("searchsorted", lambda: nd.searchsorted(x, y),  # noqa: B023
                 lambda: cupy.searchsorted(ordered, random)),  # noqa: B023
                ("isin", lambda: nd.isin(y, x), lambda: cupy.isin(random, ordered)),  # noqa: B023
            ):  # fmt: skip
                mine, its = microseconds(ours, 2e-2), microseconds(theirs, 2e-2)
                rows.append([name, dtype, str(length), f"{mine:.0f}", f"{its:.0f}",
                             f"{its / mine:.2f}"])  # fmt: skip
    header = [f"{wanted} numbers", "dtype", "vector", "ours us", "CuPy us", "CuPy/ours"]
    print(render(header, rows), flush=True)


def torch_adamw(count: int, size: int) -> Callable[[], Any] | None:
    try:
        import torch
    except ImportError:
        return None
    parameters = [torch.full((size,), 0.5, device="cuda") for _ in range(count)]
    for one in parameters:
        one.grad = torch.full_like(one, 0.5)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    return optimizer.step


def scipy_stencil(x: Any, weights: Any, axis: int) -> Callable[[], Any]:
    from cupyx.scipy import ndimage

    return lambda: ndimage.correlate1d(x, weights, axis=axis, mode="constant")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 MiB, two dtypes")
    parser.add_argument("--only", choices=["bandwidth", "host", "matmul", "searches", "training"])
    options = parser.parse_args()
    if options.only in (None, "host"):
        host_time()
    if options.only in (None, "matmul"):
        products((1024, 4096) if options.quick else (1024, 2048, 4096, 8192))
    if options.only in (None, "searches"):
        searches(1 << 24)
    if options.only in (None, "training"):
        training(10**8 if options.quick else 10**9)
    if options.only in (None, "bandwidth"):
        dtypes = (
            ("float16", "float32") if options.quick else ("float16", "float32", "float64", "int8")
        )
        bandwidth((64,) if options.quick else (64, 256), dtypes)


if __name__ == "__main__":
    main()
