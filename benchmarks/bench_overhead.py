# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Host time of one call, compared with calls of the frameworks.

    python benchmarks/bench_overhead.py                # CPU arrays of 2 x 8: CPU time of a call
    python benchmarks/bench_overhead.py --device cuda  # 1 x 4096 bf16: time to enqueue one call

On the CPU the figure includes the kernel on 2 x 8 elements. On a GPU calls are enqueued back to
back, few enough not to fill the queue, and the timed part never synchronises.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import membound

Call = Callable[[], object]
Row = tuple[str, Call, Any]  # name, call, context manager to time it in

CHAINED = 50
ENQUEUED = 200  # the driver's queue holds about a thousand launches


def cpu_nanoseconds(call: Call, calls: int = 2000, repeats: int = 41) -> list[float]:
    """Sorted CPU times of one call, which exclude the time of other processes."""
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(calls):
            call()
        times.append((time.process_time_ns() - start) / calls)
    return sorted(times)


def enqueue_nanoseconds(call: Call, synchronize: Call, repeats: int = 101) -> list[float]:
    """Sorted host times of one call; the GPU is idle at the start of each series."""
    times = []
    for _ in range(repeats + 10):
        synchronize()
        start = time.perf_counter_ns()
        for _ in range(ENQUEUED):
            call()
        times.append((time.perf_counter_ns() - start) / ENQUEUED)
    synchronize()
    return sorted(times[10:])


def norm_rows(framework: str, x: Any, w: Any, rstd: Any, empty_like: Any) -> Iterator[Row]:
    """The other norms, every result given."""
    residual, total, out, dweight = (empty_like(one) for one in (x, x, x, w))
    residual[:] = 1
    add, backward = membound.add_rms_norm, membound.rms_norm_backward
    fused, always = membound.fused_add_rms_norm, nullcontext()
    yield (
        f"{framework}, add_rms_norm",
        lambda: add(x, residual, w, out=out, residual_out=total),
        always,
    )
    yield f"{framework}, fused_add_rms_norm", lambda: fused(out, total, w), always
    yield (
        f"{framework}, rms_norm_backward",
        lambda: backward(x, residual, w, rstd, dx=out, dweight=dweight),
        always,
    )
    yield (
        f"{framework}, rms_norm_backward, dx alone",
        lambda: backward(x, residual, w, rstd, dx=out, need_dweight=False),
        always,
    )


def torch_rows(device: str, shape: tuple[int, int], dtype: str) -> Iterator[Row]:
    import torch

    kind = getattr(torch, dtype)
    x = torch.ones(shape, dtype=kind, device=device)
    out, w = torch.empty_like(x), torch.ones(shape[1], dtype=kind, device=device)
    rms_norm, functional = membound.rms_norm, torch.nn.functional.rms_norm
    always = nullcontext()
    yield "membound, torch, out=, no_grad", lambda: rms_norm(x, w, out=out), torch.no_grad()
    yield "membound, torch, out=", lambda: rms_norm(x, w, out=out), always
    yield "membound, torch, allocating", lambda: rms_norm(x, w), always
    rstd = torch.ones(shape[0], device=device)
    yield from norm_rows("membound, torch", x, w, rstd, torch.empty_like)
    yield "torch.add(out=)", lambda: torch.add(x, x, out=out), always
    yield "torch.empty_like", lambda: torch.empty_like(x), always
    yield "torch F.rms_norm", lambda: functional(x, shape[1:], w, 1e-6), always
    yield from recorded_rows(x, w)
    if device != "cpu":
        yield from peer_rows(x, w)
        side = torch.cuda.Stream(device)
        yield "membound, torch, out=, stream=", lambda: rms_norm(x, w, out=out, stream=side), always


def recorded_rows(x: Any, w: Any) -> Iterator[Row]:
    """membound.torch: plain, with a gradient recorded, and one of 50 calls in a compiled graph."""
    import torch

    import membound.torch as mt

    out, always = torch.empty_like(x), nullcontext()
    xg, wg = (t.clone().requires_grad_() for t in (x, w))
    functional, norm = torch.nn.functional, mt.rms_norm
    yield "membound.torch, out=, no_grad", lambda: norm(x, w, out=out), torch.no_grad()
    yield "membound.torch, allocating, no_grad", lambda: norm(x, w), torch.no_grad()
    yield "membound.torch, graph recorded", lambda: norm(xg, wg), always
    yield "torch F.rms_norm, graph recorded", lambda: functional.rms_norm(xg, w.shape, wg), always
    yield (
        "torch F.layer_norm, graph recorded",
        lambda: functional.layer_norm(xg, w.shape, wg, wg),
        always,
    )

    def chain(x: Any) -> Any:
        for _ in range(CHAINED):
            x = norm(x, w)
        return x

    compiled = torch.compile(chain, fullgraph=True)
    yield f"membound.torch, {CHAINED} in a compiled graph", lambda: compiled(x), torch.no_grad()


def peer_rows(x: Any, w: Any) -> Iterator[Row]:
    """RMSNorm of other installed libraries, plain and with a gradient recorded."""
    from types import SimpleNamespace

    import peers
    import torch

    given = SimpleNamespace(x=x, weight=w, out=torch.empty_like(x))
    wanting = SimpleNamespace(**{k: v.clone().requires_grad_() for k, v in vars(given).items()})
    for name, peer in peers.RMS_NORM.items():
        module = {"quack": "quack", "liger": "liger_kernel", "flashinfer": "flashinfer"}.get(name)
        if module is None or importlib.util.find_spec(module) is None:
            continue
        call = peer.make(given)
        yield name, functools.partial(call, given), torch.no_grad()
        if name != "flashinfer":  # it records nothing
            yield f"{name}, graph recorded", functools.partial(call, wanting), nullcontext()


def jax_rows(shape: tuple[int, int], dtype: str) -> Iterator[Row]:
    """Calls under jit, compared with an addition under jit, on JAX's default device."""
    import jax

    import membound.jax as mj

    x, w = jax.numpy.ones(shape, dtype), jax.numpy.ones(shape[1], dtype)
    norm, add = jax.jit(mj.rms_norm), jax.jit(jax.numpy.add)
    yield "membound.jax under jit", lambda: norm(x, w), nullcontext()
    yield "JAX, add under jit", lambda: add(x, x), nullcontext()


def numpy_rows() -> Iterator[Row]:
    import numpy

    x, w = numpy.ones((2, 8), numpy.float32), numpy.ones(8, numpy.float32)
    out, rms_norm, always = numpy.empty_like(x), membound.rms_norm, nullcontext()
    yield "membound, NumPy, out=", lambda: rms_norm(x, w, out=out), always
    yield "membound, NumPy, allocating", lambda: rms_norm(x, w), always
    rstd = numpy.ones(2, numpy.float32)
    yield from norm_rows("membound, NumPy", x, w, rstd, numpy.empty_like)
    if importlib.util.find_spec("ml_dtypes"):
        from ml_dtypes import bfloat16

        bx, bw, bout = (a.astype(bfloat16) for a in (x, w, out))
        yield "membound, NumPy bfloat16, out=", lambda: rms_norm(bx, bw, out=bout), always
    yield "numpy.add(out)", lambda: numpy.add(x, x, out), always
    yield "numpy.empty_like", lambda: numpy.empty_like(x), always


def cupy_rows(shape: tuple[int, int]) -> Iterator[Row]:
    import cupy

    x, w = cupy.ones(shape, cupy.float16), cupy.ones(shape[1], cupy.float16)
    out, rms_norm, always = cupy.empty_like(x), membound.rms_norm, nullcontext()
    yield "membound, CuPy fp16, out=", lambda: rms_norm(x, w, out=out), always
    yield "membound, CuPy fp16, allocating", lambda: rms_norm(x, w), always
    yield "cupy.add(out)", lambda: cupy.add(x, x, out), always


def rows(device: str) -> Iterator[Row]:
    yield "an empty lambda", lambda: None, nullcontext()
    has = importlib.util.find_spec
    if device == "cpu":
        if has("torch"):
            yield from torch_rows("cpu", (2, 8), "float32")
        if has("numpy"):
            yield from numpy_rows()
        if has("jax"):
            yield from jax_rows((2, 8), "float32")
        return
    yield from torch_rows(device, (1, 4096), "bfloat16")
    if has("jax"):
        yield from jax_rows((1, 4096), "bfloat16")
    if has("cupy"):
        yield from cupy_rows((1, 4096))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--json", default="", metavar="PATH", help="also write the figures")
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    synchronize: Call = lambda: None  # noqa: E731
    if on_gpu:
        import torch

        synchronize = torch.cuda.synchronize
    elif importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
    figures = {}
    print(f"{'nanoseconds a call on the host':<44} {'median':>8} {'p10':>8} {'p90':>8}")
    for name, call, context in rows(options.device):
        with context:
            call()
            times = enqueue_nanoseconds(call, synchronize) if on_gpu else cpu_nanoseconds(call)
        p10, median, p90 = (
            times[len(times) // 10], statistics.median(times), times[len(times) * 9 // 10],
        )  # fmt: skip
        figures[name] = {"median_ns": median, "p10_ns": p10, "p90_ns": p90}
        print(f"{name:<44} {median:8.0f} {p10:8.0f} {p90:8.0f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": options.device, "host_ns_per_call": figures}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
