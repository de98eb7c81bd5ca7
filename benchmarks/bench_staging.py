# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""A NumPy array staged through the GPU, against torch's pinned transfers of the same bytes.

    python benchmarks/bench_staging.py [--sweep] [--json out.json]

Each figure is the median of 7. `ratio` is ours over the slower of the two transfers, each measured
alone and from page-locked memory that torch already owns; ours starts and ends in pageable NumPy
memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import membound

REPEATS = 7
SHAPES = [(4096, 4096), (16384, 4096), (65536, 4096), (2 << 20, 128), (64, 4 << 20)]
DTYPES = ("float32", "float16")


def median_ms(call: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS + 1):  # the first call warms up
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def transfers_ms(count: int) -> dict[str, float]:
    """Pinned upload, pinned download, and both at once on two streams."""
    up, down = (torch.empty(count, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    there, back = (torch.empty(count, dtype=torch.uint8, device="cuda") for _ in range(2))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def run(uploads: bool, downloads: bool) -> None:
        if uploads:
            with torch.cuda.stream(streams[0]):
                there.copy_(up, non_blocking=True)
        if downloads:
            with torch.cuda.stream(streams[1]):
                down.copy_(back, non_blocking=True)
        torch.cuda.synchronize()

    return {
        "up": median_ms(lambda: run(True, False)),
        "down": median_ms(lambda: run(False, True)),
        "both": median_ms(lambda: run(True, True)),
    }


def make(shape: tuple[int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.resize(rng.standard_normal(1 << 22, np.float32), shape).astype(dtype)
    return x, rng.standard_normal(shape[1], np.float32).astype(dtype)


def check(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """Check the result; a wrong one is not timed."""
    for row in {0, len(x) // 2, len(x) - 1}:
        wide = x[row].astype(np.float64)
        wanted = wide / np.sqrt(np.mean(wide * wide) + 1e-6) * weight.astype(np.float64)
        np.testing.assert_allclose(
            out[row], wanted, rtol=2e-3 if x.itemsize == 2 else 1e-5, atol=1e-7
        )


def measure(shape: tuple[int, int], dtype: str) -> dict[str, float]:
    x, weight = make(shape, dtype)
    out = np.empty_like(x)
    start = time.perf_counter()
    membound.rms_norm(x, weight, out=out, device="cuda")
    first = 1e3 * (time.perf_counter() - start)
    check(x, weight, out)
    ours = median_ms(lambda: membound.rms_norm(x, weight, out=out, device="cuda"))
    fresh = median_ms(lambda: membound.rms_norm(x, weight, device="cuda"))
    found = transfers_ms(x.nbytes)
    slower = max(found["up"], found["down"])
    return {
        "mib": x.nbytes / 2**20, **found, "first": first, "out=": ours, "fresh": fresh,
        "ratio": ours / slower, "fresh ratio": fresh / slower,
    }  # fmt: skip


def options_to_sweep() -> Iterator[dict[str, int]]:
    cores = membound.cpu_threads()
    threads = sorted({max(1, cores // 4), max(1, cores // 2), max(1, cores * 3 // 4), cores})
    for slot_kib, slots, count in itertools.product((512, 1024, 2048, 4096), (2, 3), threads):
        yield {"slot_bytes": slot_kib << 10, "slots_per_thread": slots, "threads": count}


def sweep(shape: tuple[int, int], dtype: str) -> None:
    x, weight = make(shape, dtype)
    out = np.empty_like(x)
    found = transfers_ms(x.nbytes)
    slower = max(found["up"], found["down"])
    print(f"\n{shape[0]} x {shape[1]} {dtype}: slower transfer {slower:.2f} ms")
    for chosen in options_to_sweep():
        options = membound.StagingOptions()
        options.cached_bytes = 1 << 30
        for name, value in chosen.items():
            setattr(options, name, value)
        membound.set_staging_options(options)
        ours = median_ms(lambda: membound.rms_norm(x, weight, out=out, device="cuda"))
        text = "  ".join(f"{name} {value:8d}" for name, value in chosen.items())
        print(f"  {text}  {ours:8.2f} ms  ratio {ours / slower:.3f}", flush=True)
    membound.set_staging_options(membound.StagingOptions())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="try chunk sizes and thread counts")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    threads = f"{membound.cpu_threads()} threads"
    print(f"{torch.cuda.get_device_name()}, {threads}, torch {torch.__version__}")
    names = ("mib", "up", "down", "both", "first", "out=", "fresh", "ratio", "fresh ratio")
    print(f"{'shape':>16} {'dtype':>8} " + " ".join(f"{name:>11}" for name in names))
    results = []
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        row = measure(shape, dtype)
        results.append({"rows": shape[0], "cols": shape[1], "dtype": dtype, **row})
        print(f"{shape[0]:>8} x {shape[1]:>5} {dtype:>8} "
              + " ".join(f"{row[name]:11.3f}" for name in names), flush=True)  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.sweep:
        sweep((65536, 4096), "float32")
        sweep((4096, 4096), "float32")


if __name__ == "__main__":
    main()
