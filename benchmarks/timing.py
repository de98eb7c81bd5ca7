# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""What the GPU benchmarks of all ops share: buffers, the check before the clock, the report.

One figure is the median of nine replays of a CUDA graph, divided by the number of calls. The graph
calls the op on sets of buffers in rotation, enough of them to overflow three times the L2 cache.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import membound
from membound import _info
from membound._table import markdown, render
from membound._ulps import ALLOWED, FORMATS, sum_slack
from membound.bench import Progress
from membound.bench.timing import TorchGraphs, buffer_sets, rotate

DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
VERIFY_ELEMENTS = 1 << 24  # elements that are converted to float64 at a time

# Copies between some buffers of 512 MiB and more reach only 2.8 TB/s on an H200. Then the reference
# is the bandwidth that the same memory reaches with other sizes (bytes read plus written).
H200_BYTES_PER_MICROSECOND = 4.30e6
SLOW_COPY_BYTES = 512 << 20


EXPLANATION = (
    "Microseconds per call in one CUDA graph over cold buffers, median of nine replays; "
    "`copy / ours` is 1 when ours is as fast as a copy of the same bytes. `ours, mixed`: between "
    "copies instead of between calls of its own kind."
)


@dataclass(frozen=True)
class Shape:
    rows: int
    cols: int
    dtype: str = "bfloat16"
    layout: str = "contiguous"  # or "strided rows", "off by one"
    peers: bool = False  # time every peer, not only torch
    mixed: bool = False  # also time ours between other kernels

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.cols * ITEM_BYTES[self.dtype]

    @property
    def text(self) -> str:
        where = "" if self.layout == "contiguous" else f", {self.layout}"
        return f"{self.rows} x {self.cols}{where}"


@dataclass
class Record:
    """One line of the report, microseconds per call."""

    shape: Shape
    ours: float
    copy: float
    mixed: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    yardstick: float = 0.0

    @property
    def ratio(self) -> float:
        return self.yardstick / self.ours

    def cells(self) -> list[str]:
        best = min(self.peers, key=self.peers.get, default="")
        return [
            self.shape.text,
            self.shape.dtype,
            f"{self.ours:.3f}",
            f"{self.copy:.3f}",
            f"{self.ratio:.3f}",
            "-" if self.mixed is None else f"{self.mixed:.3f}",
            f"{self.peers[best]:.3f} {best}" if best else "-",
            "-" if not best else f"{self.peers[best] / self.ours:.2f}",
        ]


HEADER = [
    "shape",
    "dtype",
    "ours",
    "copy",
    "copy / ours",
    "ours, mixed",
    "best peer",
    "peer / ours",
]


def matrices(shape: Shape, device: str, count: int, *, readable: bool) -> list[torch.Tensor]:
    """count matrices of the shape's layout in one allocation; random, or NaN where only written."""
    strided = readable and shape.layout == "strided rows"
    stride = shape.cols + (512 if strided else 0)
    shift = 1 if shape.layout == "off by one" else 0
    block = shape.rows * stride
    base = torch.empty(count * block + shift, device=device, dtype=DTYPES[shape.dtype])
    base.normal_() if readable else base.fill_(float("nan"))
    whole = base[shift:].view(count, shape.rows, stride)
    return [matrix[:, : shape.cols] for matrix in whole]


def quantised(shape: Shape, device: str, count: int) -> list[torch.Tensor]:
    """count matrices of float8_e4m3fn, full of NaN."""
    whole = torch.full((count, shape.rows, shape.cols), 0x7F, dtype=torch.uint8, device=device)
    return list(whole.view(torch.float8_e4m3fn))


def vectors(elements: int, shape: Shape, device: str, count: int) -> list[torch.Tensor]:
    """count vectors of the shape's dtype in one allocation, for copies."""
    whole = torch.zeros(count, max(1, elements), device=device, dtype=DTYPES[shape.dtype])
    return list(whole)


def copies(
    elements: int, shape: Shape, device: str, count: int
) -> list[Callable[[], torch.Tensor]]:
    """count copies between vectors of the shape's dtype, each with its own two vectors."""
    flat = vectors(elements, shape, device, 2 * count)
    return [functools.partial(flat[2 * i].copy_, flat[2 * i + 1]) for i in range(count)]


def ulps(got: torch.Tensor, wanted: torch.Tensor, slack: torch.Tensor | float, dtype: str) -> float:
    """The largest error beyond the slack, in ulps of dtype; NaN is infinite."""
    bits, smallest, _ = FORMATS[dtype]
    exponent = torch.frexp(wanted).exponent.clamp(min=smallest + 1)
    ulp = torch.ldexp(torch.ones_like(wanted), exponent - bits)
    error = ((got.double() - wanted).abs() - slack) / ulp
    return max(0.0, error.nan_to_num(nan=float("inf")).max().item())


def worst_ulps(
    got: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    formula: Callable[..., Any],
    dtype: str,
    patience: float = 1.0,
) -> float:
    """The largest error of got against formula(rows of the inputs in float64), in ulps of dtype.

    A formula may return the right values with the magnitude of the terms that they sum; the slack
    is patience times the one that applies to our own op.
    """
    step = max(1, VERIFY_ELEMENTS // got.shape[-1])
    worst = 0.0
    for first in range(0, got.shape[0], step):
        rows = slice(first, first + step)
        wanted = formula(*(one[rows].double() for one in inputs))
        slack: torch.Tensor | float = 0.0
        if isinstance(wanted, tuple):
            wanted, terms = wanted
            slack = patience * sum_slack(dtype) * terms
        worst = max(worst, ulps(got[rows], wanted, slack, dtype))
    return worst


def worst_column_ulps(
    got: torch.Tensor, inputs: Sequence[torch.Tensor], terms: Callable[..., Any], dtype: str
) -> float:
    """The same for the sum over all rows of terms(rows of the inputs in float64)."""
    step = max(1, VERIFY_ELEMENTS // got.shape[-1])
    wanted, sizes = (torch.zeros_like(got, dtype=torch.float64) for _ in range(2))
    for first in range(0, inputs[0].shape[0], step):
        part = terms(*(one[first : first + step].double() for one in inputs))
        wanted += part.sum(0)
        sizes += part.abs().sum(0)
    return ulps(got, wanted, sum_slack(dtype) * sizes, dtype)


def limit(dtype: str) -> float:
    # The float64 reference has itself a rounding error of a few ulps.
    return 16.0 if dtype == "float64" else ALLOWED[dtype]


def is_right(worst: float, dtype: str) -> bool:
    return worst <= limit(dtype)


# Peers may sum in float32 in any order, and round terms to 16 bits.
PEER_PATIENCE = {"float16": 2.0**13, "bfloat16": 2.0**16, "float32": 64.0, "float64": 64.0}


def is_plausible(worst: float, dtype: str) -> bool:
    """Whether a peer's result is plausible: it may round twice and sum in another order."""
    return worst <= (3.0 if dtype in ("float16", "bfloat16") else 64.0)


class Clock:
    """Times calls on one device by the method above."""

    def __init__(self, device: str = "cuda:0"):
        self.device = device
        self.index = torch.device(device).index or 0
        self.cache_bytes = membound.device_properties(self.index).l2_bytes
        self.graphs = TorchGraphs(device)

    def sets(self, moved_bytes: int) -> int:
        return buffer_sets(moved_bytes, self.cache_bytes)

    def microseconds(self, calls: Sequence[Callable[[], Any]]) -> float:
        return self.graphs.microseconds(rotate(calls), len(calls))

    def between_copies(
        self, calls: Sequence[Callable[[], Any]], copies: Sequence[Callable[[], Any]], copy: float
    ) -> float:
        """The op between other kernels: the time it adds to a graph of copies of other buffers."""
        turns = [call for pair in zip(calls, copies, strict=True) for call in pair]
        return 2 * self.microseconds(turns) - copy

    def yardstick(self, moved_bytes: int, copy: float) -> float:
        if moved_bytes // 2 >= SLOW_COPY_BYTES and "H200" in torch.cuda.get_device_name(self.index):
            return min(copy, moved_bytes / H200_BYTES_PER_MICROSECOND)
        return copy


def progress(shapes: Sequence[Shape]) -> Iterator[Shape]:
    """Iterate over the shapes, with a progress bar on a terminal."""
    bar = Progress(len(shapes), sys.stderr)
    for shape in shapes:
        bar.step(f"{shape.text} {shape.dtype}")
        yield shape
    bar.close()


@dataclass
class Report:
    """The table, and the same as JSON and Markdown files."""

    op: str
    versions: dict[str, str]
    device: str
    records: list[Record] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def table(self) -> str:
        return render(HEADER, [record.cells() for record in self.records])

    def notes(self) -> list[str]:
        return [f"{r.shape.text} {r.shape.dtype}: {n}" for r in self.records for n in r.notes]

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{self.op}-{self.device.lower().replace(' ', '-')}"
        script = Path(sys.argv[0]).name
        command = f"python benchmarks/{script} {' '.join(sys.argv[1:])}".strip()
        known = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        text = [
            f"# {self.op} on {self.device}",
            "",
            f"`{command}` with {known}.",
            EXPLANATION,
            "",
            markdown(HEADER, [record.cells() for record in self.records]),
            *(["", *(f"- {note}" for note in self.notes())] if self.notes() else []),
            "",
        ]
        document = {
            "command": command,
            "versions": self.versions,
            "info": {k: v for k, v in _info.collect().items() if k != "package"},
            "records": [{**asdict(record), "ratio": record.ratio} for record in self.records],
        }
        paths = [folder / f"{stem}.md", folder / f"{stem}.json"]
        paths[0].write_text("\n".join(text), encoding="utf-8")
        paths[1].write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return paths
