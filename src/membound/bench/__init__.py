# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m membound bench`: times each op against a copy of the same bytes and frameworks."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import membound
from membound import _frameworks
from membound._progress import Progress
from membound.bench import (
    activations,
    contestants,
    elementwise,
    embedding,
    norms,
    picture,
    results,
    rotary,
    softmax,
    timing,
)
from membound.bench.contestants import Op
from membound.bench.results import Earlier, Result

_FAMILIES = (norms, activations, rotary, embedding, softmax, elementwise)
OPS = {op.name: op for family in _FAMILIES for op in family.OPS}

GPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (16384, 4096)]
GPU_SIZES += [(8192, 8192), (8192, 16384), (2048, 65536), (524288, 128)]
Rounds = dict[str, list[float]]  # microseconds per call of each round, by contestant
SLOWER, UNUSABLE, INTERRUPTED = 1, 2, 130
CPU_SIZES = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096)]


class OnGpu:
    """Measures CUDA graphs of many calls, captured through torch or CuPy."""

    def __init__(self, index: int):
        self.index = index
        self.device = f"cuda:{index}"
        self.properties = membound.device_properties(self.index)
        self.name = self.properties.name
        self.timer: Any
        self.dtypes = _frameworks.DTYPES
        if _frameworks.installed_version("torch"):
            import torch

            if torch.cuda.is_available():
                self.framework: Any = _frameworks.Torch(self.device)
                self.timer = timing.TorchGraphs(self.device)
                return
        if _frameworks.installed_version("cupy") is None:
            raise LookupError("bench on a GPU needs torch with CUDA, or CuPy, to time with")
        self.framework = _frameworks.CuPy(self.index)
        self.dtypes = self.framework.dtypes
        self.timer = timing.CuPyGraphs(self.device)

    def measure(self, op: Op, rows: int, cols: int, dtype: str, warm: bool) -> Rounds:
        moved = op.bytes_moved(rows, cols, dtype)
        sets = 1 if warm else timing.buffer_sets(moved, self.properties.l2_bytes)
        calls = _calls(op, self.framework, rows, cols, dtype, sets)
        return {
            name: self.timer.rounds(timing.rotate(calls_of_one), sets)
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
        self.dtypes = {dtype for one in self.frameworks for dtype in one.dtypes}

    def measure(self, op: Op, rows: int, cols: int, dtype: str, warm: bool) -> Rounds:
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
        return timing.cpu_rounds(calls)


def _calls(
    op: Op, framework: Any, rows: int, cols: int, dtype: str, sets: int
) -> contestants.Contestants:
    """The calls of each contestant of one framework."""
    if framework.name == "torch":
        torch, device = framework.torch, framework.device
        return contestants.on_torch(op, torch, device, rows, cols, dtype, sets)
    module = framework.np if framework.name == "numpy" else framework.cupy
    return contestants.on_numpy_like(op, module, framework, rows, cols, dtype, sets)


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


def _dtypes(asked: str, where: OnCpu | OnGpu) -> list[str]:
    """The dtype that was asked for, or the usual ones of which there are arrays."""
    usual = ["float32"] if where.device == "cpu" else ["bfloat16", "float32"]
    found = [one for one in ([asked] if asked else usual) if one in where.dtypes]
    if not found:
        raise LookupError(f"bench in {asked} needs torch, or on the CPU ml_dtypes")
    return found


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


def measure(
    where: OnCpu | OnGpu, work: Sequence[tuple[str, int, int, str]], warm: bool
) -> tuple[list[Result], list[str]]:
    """Measure one after the other; Ctrl-C ends it and keeps what there is.

    Returns also what could not be measured, as a size that the op does not take, and why.
    """
    progress = Progress(len(work), sys.stderr)
    found, failed = [], []
    try:
        for name, rows, cols, dtype in work:
            label = f"{name} {rows} x {cols} {dtype}"
            progress.step(label)
            try:
                rounds = where.measure(OPS[name], rows, cols, dtype, warm)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are kept
                failed.append(f"{label} ({type(error).__name__}: {error})")
                continue
            moved = OPS[name].bytes_moved(rows, cols, dtype)
            found.append(results.result_of(name, rows, cols, dtype, moved, rounds))
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        progress.close()
    return found, failed


def _compare(earlier: Earlier, device: str, cache: str, found: Sequence[Result]) -> bool:
    """Print what changed; return whether an op became slower."""
    if (earlier.device, earlier.cache) != (device, cache):
        print(f"compared with another machine or cache: {earlier.device}, {earlier.cache}")
    text, verdicts = results.comparison(earlier, found)
    print(text)
    counts = {name: verdicts.count(name) for name in ("faster", "slower", "same", "machine")}
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    print("same: less than what the rounds hide; machine: the copy changed as much")
    return counts["slower"] > 0


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; exit code 1: slower than --compare, 2: not all ran, 130: Ctrl-C."""
    try:
        _check_targets(options)
        earlier = results.read_json(options.compare) if options.compare else None
        where = _device_for(options.device)
        dtypes = _dtypes(options.dtype, where)
    except (LookupError, OSError, ValueError) as error:
        print(f"membound: {error}", file=sys.stderr)
        return UNUSABLE
    work = [
        (name, rows, cols, dtype)
        for name in options.op or OPS
        for dtype in dtypes
        for rows, cols in options.sizes or (CPU_SIZES if where.device == "cpu" else GPU_SIZES)
    ]
    found, failed = measure(where, work, options.warm)
    complete = len(found) == len(work)
    code = UNUSABLE if failed else 0
    if len(found) + len(failed) < len(work):
        print(f"interrupted: {len(found)} of {len(work)} were measured")
        code = INTERRUPTED
    for reason in failed:
        print(f"not measured: {reason}")
    if not found:
        return code
    cache = "warm" if options.warm else "cold"
    print(f"{where.name}; {cache} cache; microseconds per call, medians")
    print(results.table(found))
    if noise := results.marked_as_noise(found):
        print(noise)
    if options.json:
        results.write_json(options.json, where.name, options.warm, complete, found)
    if options.plot:
        sequences = {name for name, op in OPS.items() if op.sequences}
        picture.write(options.plot, options.plot_kind, found, sequences, where.name)
    slower = earlier is not None and _compare(earlier, where.name, cache, found)
    return code or (SLOWER if slower else 0)
