# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m membound bench`: times each op against a copy of the same bytes and frameworks."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import membound
from membound import _frameworks, _info
from membound._table import render
from membound.bench import (
    activations,
    contestants,
    elementwise,
    embedding,
    norms,
    rotary,
    softmax,
    timing,
)
from membound.bench.contestants import Op

_FAMILIES = (norms, activations, rotary, embedding, softmax, elementwise)
OPS = {op.name: op for family in _FAMILIES for op in family.OPS}

GPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (16384, 4096)]
GPU_SIZES += [(8192, 8192), (8192, 16384), (2048, 65536), (524288, 128)]
CPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096)]


@dataclass
class Result:
    """One op at one size: microseconds per call of each contestant."""

    op: str
    rows: int
    cols: int
    dtype: str
    bytes: int
    microseconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """Speed relative to a copy of the same bytes: 1 means equally fast."""
        return self.microseconds["copy"] / self.microseconds["membound"]

    def gigabytes_per_second(self, contestant: str) -> float:
        return self.bytes / self.microseconds[contestant] / 1e3


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int, stream: TextIO):
        self.total, self.stream, self.done = total, stream, 0

    def step(self, label: str) -> None:
        if self.stream.isatty():
            filled = 30 * self.done // max(1, self.total)
            bar = "#" * filled + "." * (30 - filled)
            self.stream.write(f"\r[{bar}] {self.done}/{self.total} {label:<40}")
            self.stream.flush()
        self.done += 1

    def close(self) -> None:
        if self.stream.isatty():
            self.stream.write("\r" + " " * 84 + "\r")
            self.stream.flush()


class OnGpu:
    """Measures CUDA graphs of many calls, captured through torch or CuPy."""

    def __init__(self, index: int):
        self.index = index
        self.device = f"cuda:{index}"
        self.properties = membound.device_properties(self.index)
        self.name = self.properties.name
        self.timer: Any
        if _frameworks.installed_version("torch"):
            import torch

            if torch.cuda.is_available():
                self.framework: Any = _frameworks.Torch(self.device)
                self.timer = timing.TorchGraphs(self.device)
                return
        if _frameworks.installed_version("cupy") is None:
            raise LookupError("bench on a GPU needs torch with CUDA, or CuPy, to time with")
        self.framework = _frameworks.CuPy(self.index)
        self.timer = timing.CuPyGraphs(self.device)

    def measure(self, op: Op, rows: int, cols: int, dtype: str, warm: bool) -> dict[str, float]:
        moved = op.bytes_moved(rows, cols, dtype)
        sets = 1 if warm else timing.buffer_sets(moved, self.properties.l2_bytes)
        calls = _calls(op, self.framework, rows, cols, dtype, sets)
        return {
            name: self.timer.microseconds(timing.rotate(calls_of_one), sets)
            for name, calls_of_one in calls.items()
        }


class OnCpu:
    """Measures wall time, contestants interleaved; ours and the copy share one framework."""

    def __init__(self):
        self.device = "cpu"
        self.name = f"CPU, {membound.cpu_isa()}, {membound.cpu_threads()} threads"
        names = [name for name in ("torch", "numpy") if _frameworks.installed_version(name)]
        if not names:
            raise LookupError("bench on the CPU needs NumPy or torch: pip install numpy ml_dtypes")
        kinds = {"torch": _frameworks.Torch, "numpy": _frameworks.NumPy}
        self.frameworks = [kinds[name]() for name in names]

    def measure(self, op: Op, rows: int, cols: int, dtype: str, warm: bool) -> dict[str, float]:
        moved = op.bytes_moved(rows, cols, dtype)
        sets = 1 if warm else min(timing.buffer_sets(moved, timing.cpu_cache_bytes()), 1024)
        calls: contestants.Contestants = {}
        for framework in self.frameworks:
            if dtype in framework.dtypes:
                found = _calls(op, framework, rows, cols, dtype, sets)
                calls = {**found, **calls}  # ours and the copy: of the first framework
        if _frameworks.installed_version("jax"):
            jax = _frameworks.jax_module()
            cpu = jax.devices("cpu")[0]
            calls |= contestants.on_jax(op, jax, cpu, rows, cols, dtype, sets)
        return timing.cpu_microseconds(calls)


def _calls(
    op: Op, framework: Any, rows: int, cols: int, dtype: str, sets: int
) -> contestants.Contestants:
    """The calls of each contestant of one framework."""
    if framework.name == "torch":
        torch, device = framework.torch, framework.device
        return contestants.on_torch(op, torch, device, rows, cols, dtype, sets)
    module = framework.np if framework.name == "numpy" else framework.cupy
    return contestants.on_numpy_like(op, module, framework, rows, cols, dtype, sets)


def table(results: list[Result]) -> str:
    peers = dict.fromkeys(name for result in results for name in result.microseconds)
    header = ["op", "rows x cols", "dtype", *(f"{name} us" for name in peers), "GB/s", "of copy"]
    rows = []
    for one in results:
        times = [f"{one.microseconds[p]:.3f}" if p in one.microseconds else "-" for p in peers]
        speed = f"{one.gigabytes_per_second('membound'):.1f}"
        shape = f"{one.rows} x {one.cols}"
        rows.append([one.op, shape, one.dtype, *times, speed, f"{one.ratio:.3f}"])
    return render(header, rows)


def write_json(path: str, where: Any, warm: bool, results: list[Result]) -> None:
    document = {
        "device": where.name,
        "cache": "warm" if warm else "cold",
        "info": _info.collect(),
        "results": [{**asdict(one), "ratio_to_copy": one.ratio} for one in results],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)


def plot_axis(op: str, results: list[Result]) -> tuple[str, list[tuple[float, Result]]]:
    """Return the x axis of a plot and its results: bytes, or the length for ops on sequences.

    A plot over lengths keeps the results of one width, the most frequent one.
    """
    if not OPS[op].sequences:
        points = [(one.bytes / 2**20, one) for one in results]
        label = "MiB read and written"
    else:
        widths = [one.cols for one in results]
        width = max(widths, key=widths.count)
        points = [(float(one.rows), one) for one in results if one.cols == width]
        label = f"sequence length, tokens of {width} elements"
    return label, sorted(points, key=lambda point: point[0])


def write_plot(path: str, where: Any, results: list[Result]) -> None:
    """Time and bytes per second, two panels per op and dtype."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((one.op, one.dtype) for one in results))
    figure, axes = pyplot.subplots(
        2, len(panels), figsize=(6 * len(panels), 9), squeeze=False, layout="constrained"
    )
    for (upper, lower), (op, dtype) in zip(axes.T, panels, strict=True):
        label, mine = plot_axis(op, [r for r in results if (r.op, r.dtype) == (op, dtype)])
        for name in dict.fromkeys(name for _, one in mine for name in one.microseconds):
            points = [(x, one) for x, one in mine if name in one.microseconds]
            abscissae = [x for x, _ in points]
            upper.plot(abscissae, [one.microseconds[name] for _, one in points], "o-", label=name)
            speeds = [one.gigabytes_per_second(name) for _, one in points]
            lower.plot(abscissae, speeds, "o-", label=name)
        upper.set(xscale="log", yscale="log", ylabel="microseconds", title=f"{op} {dtype}")
        lower.set(xscale="log", xlabel=label, ylabel="GB/s")
        upper.legend()
    figure.suptitle(where.name)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _device_for(device: str) -> OnCpu | OnGpu:
    status = membound.cuda_status()
    if not device:
        device = "cuda" if status.device_count else "cpu"
    if device == "cpu":
        return OnCpu()
    index = int(device.partition(":")[2] or 0)
    if index >= status.device_count:
        raise LookupError(f"no GPU {index}: found {status.device_count}, {status.message}")
    return OnGpu(index)


def _check_targets(options: argparse.Namespace) -> None:
    """Refuse output paths that cannot be written, before anything is measured."""
    for option, path in (("--json", options.json), ("--plot", options.plot)):
        file = Path(path)
        target = file if file.exists() else file.parent
        if path and (file.is_dir() or not os.access(target, os.W_OK)):
            raise LookupError(f"{option} cannot write to {path}")
    if not options.plot:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise LookupError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    known, suffix = FigureCanvasBase.get_supported_filetypes(), Path(options.plot).suffix
    if suffix and suffix[1:].lower() not in known:  # without one it is a PNG
        raise LookupError(f"--plot cannot draw {suffix}; known: {', '.join(sorted(known))}")


def run(options: argparse.Namespace) -> int:
    try:
        _check_targets(options)
        where = _device_for(options.device)
    except LookupError as error:
        print(f"membound: {error}", file=sys.stderr)
        return 2
    on_cpu = where.device == "cpu"
    dtypes = (
        [options.dtype] if options.dtype else ["float32"] if on_cpu else ["bfloat16", "float32"]
    )
    work = [
        (name, rows, cols, dtype)
        for name in options.op or OPS
        for dtype in dtypes
        for rows, cols in options.sizes or (CPU_SIZES if on_cpu else GPU_SIZES)
    ]
    progress = Progress(len(work), sys.stderr)
    results = []
    for name, rows, cols, dtype in work:
        progress.step(f"{name} {rows} x {cols} {dtype}")
        times = where.measure(OPS[name], rows, cols, dtype, options.warm)
        moved = OPS[name].bytes_moved(rows, cols, dtype)
        results.append(Result(name, rows, cols, dtype, moved, times))
    progress.close()
    print(f"{where.name}; {'warm' if options.warm else 'cold'} cache; microseconds per call")
    print(table(results))
    if options.json:
        write_json(options.json, where, options.warm, results)
    if options.plot:
        write_plot(options.plot, where, results)
    return 0
