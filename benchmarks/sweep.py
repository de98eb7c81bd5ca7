# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Finds shapes that are slower than their neighbours: times many widths and sizes of our ops.

    python benchmarks/sweep.py --ops rms_norm,rms_norm_quant.STATIC --cols 768,1024 --rows 16,256
    python benchmarks/sweep.py --megabytes 3,24,140 --json after.json --against before.json

Results are not checked; bench_<op>.py does that. It prints each shape whose ratio to a copy of the
same bytes is far below the median of its neighbours, the shapes of the same bytes and the next
widths; with --against, the old and new times of every shape in both.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import contest
import torch
from timing import Clock, Shape, copies, progress

OPS = (
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "rms_norm_gated",
    "rms_norm_quant",
    "rms_norm_quant.STATIC",
    "rms_norm_backward",
    "rms_norm_backward.ADD",
    "layer_norm_backward",
    "rms_norm_gated_backward",
    "gated_activation",
    "gated_activation_backward",
    "gated_activation_quant",
    "softmax",
    "softmax_backward",
)
COLS = (
    *(64, 80, 128, 192, 256, 320, 512, 576, 768, 896, 1024, 1152, 1536, 2048, 2304, 2560, 2880),
    *(3072, 3584, 4096, 5120, 5376, 6144, 7168, 8192, 9216, 11008, 12288, 14336, 16384, 20480),
    *(28672, 32768),
)
NEIGHBOURS = 3  # widths on either side

Times = dict[str, tuple[float, float]]  # "op rows x cols dtype": ours and the copy


def rows_of(op: contest.Op, cols: int, dtype: str, megabytes: float) -> int:
    """The number of rows that move the bytes, a multiple of 8 unless there are few."""
    rows = int(megabytes * 1e6 / op.moved_bytes(Shape(1, cols, dtype)))
    return max(1, rows if rows < 16 else rows - rows % 8)


class Sweep:
    """Times our op, and a copy of each number of bytes once."""

    def __init__(self, device: str):
        self.device = device
        self.clock = Clock(device)
        self.copies: dict[int, float] = {}

    def copy(self, moved: int) -> float:
        key = round(moved / 2e5)
        if key not in self.copies:
            count = self.clock.sets(moved)
            calls = copies(moved // 4, Shape(1, 1), self.device, count)
            self.copies[key] = self.clock.yardstick(moved, self.clock.microseconds(calls))
        return self.copies[key]

    def times(self, op: contest.Op, shape: Shape) -> tuple[float, float]:
        moved = op.moved_bytes(shape)
        every = contest.buffers(op, shape, self.device, self.clock.sets(moved))
        calls: list[Callable[[], Any]] = [functools.partial(op.ours, a) for a in every]
        calls[0]()
        return min(self.clock.microseconds(calls) for _ in range(2)), self.copy(moved)


def shapes_of(options: argparse.Namespace) -> Iterator[tuple[str, Shape]]:
    for name in options.ops:
        op = contest.op_of(name)
        for cols in options.cols:
            sizes = options.rows or {
                rows_of(op, cols, options.dtype, megabytes) for megabytes in options.megabytes
            }
            for rows in sizes:
                yield name, Shape(rows, cols, options.dtype, options.layout)


def slower_than_neighbours(times: Times, below: float) -> list[str]:
    """Shapes below `below` times the median ratio of the next widths with as many elements."""
    classes = defaultdict(list)
    for key, (ours, copy) in times.items():
        op, rows, _, cols, kind = key.split(" ", 4)
        size = round(2 * math.log2(int(rows) * int(cols.rstrip(","))))
        classes[op, kind, size].append((int(cols.rstrip(",")), copy / ours, key))
    found = []
    for of_class in classes.values():
        of_class.sort()
        for at, (_, ratio, key) in enumerate(of_class):
            beside = of_class[max(0, at - NEIGHBOURS) : at] + of_class[at + 1 :][:NEIGHBOURS]
            median = statistics.median([other for _, other, _ in beside] or [0.0])
            if ratio < below * median:
                found.append(f"{key}: {times[key][0]:.2f} us, {ratio:.2f} beside {median:.2f}")
    return sorted(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda kind: lambda text: [kind(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--ops", type=numbers(str), default=OPS)
    parser.add_argument("--cols", type=numbers(int), default=COLS)
    parser.add_argument("--rows", type=numbers(int), help="in place of --megabytes")
    parser.add_argument("--megabytes", type=numbers(float), default=[1, 3, 10, 24, 60, 140])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--layout", default="contiguous")
    parser.add_argument("--below", type=float, default=0.86, help="of the neighbours' median")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path, help="what --json wrote before")
    options = parser.parse_args(arguments)

    shapes = list(shapes_of(options))
    random.Random(5).shuffle(shapes)  # random order: drift is not an effect of width
    sweep = Sweep("cuda:0")
    times: Times = {}
    with torch.cuda.device(0):
        bar = progress([shape for _, shape in shapes])
        for (name, shape), _ in zip(shapes, bar, strict=True):
            times[f"{name} {shape.text} {shape.dtype}"] = sweep.times(contest.op_of(name), shape)
    if options.json:
        options.json.write_text(json.dumps(times, indent=0))
    print("\n".join(slower_than_neighbours(times, options.below)))
    if options.against:
        before = json.loads(options.against.read_text())
        for key in sorted(times.keys() & before.keys()):
            was, now = before[key][0], times[key][0]
            print(f"{key}: {was:.2f} to {now:.2f} us ({times[key][1] / now:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
