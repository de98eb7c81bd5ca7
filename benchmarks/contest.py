# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""One op on a GPU against a copy of the same bytes and peers: buffers, checks, command line."""

from __future__ import annotations

import argparse
import functools
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peers
import timing
import torch
from peers import EPS, Peer
from timing import Clock, Record, Report, Shape

import membound

MIXED_BELOW = 8 << 20  # bytes moved; in longer calls start and end do not matter

# One set of buffers: the matrices by name, weight, bias, the statistics, dweight and dbias.
Arrays = Any


@dataclass(frozen=True)
class Op:
    """A benchmark's description of its op."""

    name: str
    read: tuple[str, ...]  # matrices of rows x cols
    written: tuple[str, ...]
    ours: Callable[[Arrays], Any]
    # (rows of the read matrices in float64 in order, statistics, parameters) -> the written ones,
    # each alone or with the magnitude of the terms that it sums.
    formula: Callable[..., tuple[Any, ...]]
    peers: dict[str, Peer]
    parameters: tuple[str, ...] = ("weight",)
    quantised: tuple[str, ...] = ()  # the written matrices that are float8_e4m3fn
    variant: str = ""  # suffix of the report's name
    normalises: bool = True  # there are statistics
    centred: bool = False  # mean and rstd of layer_norm, else rstd alone
    # Gradients of parameters: (the same rows, statistics) -> terms that are summed over all rows.
    sums: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def statistics(self) -> tuple[str, ...]:
        if not self.normalises:
            return ()
        return ("mean", "rstd") if self.centred else ("rstd",)

    def moved_bytes(self, shape: Shape) -> int:
        """Bytes moved if every matrix is read or written once."""
        wide = len(self.read) + len(self.written) - len(self.quantised)
        return wide * shape.tensor_bytes + len(self.quantised) * shape.rows * shape.cols


def goals() -> list[Shape]:
    """The shapes that the project's goals name."""
    rows_and_cols = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (16384, 4096)]
    rows_and_cols += [(8192, 8192), (8192, 16384), (2048, 65536), (524288, 128)]
    in_float32 = [(1024, 4096), (4096, 4096), (16384, 4096), (8192, 8192), (8192, 16384)]
    return [Shape(*size, peers=True) for size in rows_and_cols] + [
        Shape(*size, "float32", peers=True) for size in in_float32
    ]


def others() -> list[Shape]:
    """Wide, odd, narrow, strided and unaligned shapes, and the other dtypes."""
    wide = [(4096, 32768), (1024, 131072), (512, 262144)]
    wide_float32 = [(4096, 32768), (2048, 65536), (1024, 131072)]
    odd = [(16384, 4097), (16384, 5119), (262144, 100), (131072, 1000), (16384, 5120), (65536, 256)]
    sixteen = [(128, 4096), (4096, 4096), (16384, 4096), (8192, 8192), (4096, 32768)]
    return [
        *(Shape(*size) for size in wide),
        *(Shape(*size, "float32") for size in wide_float32),
        *(Shape(*size) for size in odd),
        *(Shape(*size, "float32") for size in odd[:2]),
        *(Shape(*size, "float16") for size in sixteen),
        *(Shape(*size, "float64") for size in [(128, 4096), (8192, 8192)]),
        *(Shape(16384, 4096, dtype, "strided rows") for dtype in ("bfloat16", "float32")),
        *(Shape(16384, 4096, dtype, "off by one") for dtype in ("bfloat16", "float32")),
        Shape(2048, 65536, "bfloat16", "off by one"),
    ]


def decode() -> list[Shape]:
    widths = (2048, 4096, 5120, 8192)
    return [Shape(2**power, cols, mixed=True) for cols in widths for power in range(8)]


def quick() -> list[Shape]:
    return [
        *(shape for shape in goals() if shape.dtype == "bfloat16"),
        *(Shape(*size, "float32") for size in [(16384, 4096), (8192, 16384)]),
        Shape(1024, 131072),
        Shape(16384, 4097),
        Shape(16384, 4096, layout="off by one"),
    ]


def op_of(name: str) -> Op:
    """Find an op by its benchmark's name; bench_<op>.<NAME> selects one of several."""
    module, _, which = name.partition(".")
    return getattr(importlib.import_module(f"bench_{module}"), which or "OP")


def sizes(text: str) -> list[Shape]:
    """Parse 16x4096:bfloat16,8192x8192:float32:off by one."""
    shapes = []
    for item in text.split(","):
        size, *rest = item.split(":")
        rows, cols = (int(part) for part in size.split("x"))
        shapes.append(Shape(rows, cols, *rest, peers=True))
    return shapes


def buffers(op: Op, shape: Shape, device: str, count: int) -> list[Arrays]:
    """Make count sets of the arrays that the op reads and writes, with the statistics of x."""
    matrices = {
        name: timing.matrices(shape, device, count, readable=name in op.read)
        for name in (*op.read, *op.written)
        if name not in op.quantised
    }
    for name in op.quantised:
        matrices[name] = timing.quantised(shape, device, count)
    kind = timing.DTYPES[shape.dtype]
    weight, bias = (torch.randn(shape.cols, device=device).to(kind) for _ in range(2))
    every = []
    for at in range(count):
        a = SimpleNamespace(weight=weight, bias=bias)
        for name in ("dweight", "dbias"):
            setattr(a, name, torch.empty_like(weight))
        for name, matrix in matrices.items():
            setattr(a, name, matrix[at])
        a.scale = torch.full((shape.rows,), float("nan"), device=device)
        a.static_scale = torch.full((1,), peers.STATIC_SCALE, device=device)
        if op.centred:
            _, a.mean, a.rstd = membound.layer_norm(a.x, eps=EPS, return_stats=True)
        elif op.normalises:
            a.rstd = membound.rms_norm(a.x, eps=EPS, return_rstd=True)[1]
        every.append(a)
    return every


def _worst(
    op: Op, shape: Shape, a: Arrays, results: Sequence[torch.Tensor], patience: float = 1.0
) -> float:
    """The largest error of one set's results, in ulps."""
    inputs = [getattr(a, name) for name in (*op.read, *op.statistics)]
    parameters = [getattr(a, name).double() for name in op.parameters]
    worst = 0.0
    for at, result in enumerate(results[: len(op.written)]):

        def wanted(*rows: torch.Tensor, at: int = at) -> Any:
            return op.formula(*rows, *parameters)[at]

        dtype = "float8_e4m3fn" if op.written[at] in op.quantised else shape.dtype
        error = timing.worst_ulps(result, inputs, wanted, dtype, patience)
        # Relative to the limit of the shape's dtype, so that one limit serves all results.
        worst = max(worst, error * timing.limit(shape.dtype) / timing.limit(dtype))
    for result, terms in zip(results[len(op.written) :], op.sums.values(), strict=False):
        worst = max(worst, timing.worst_column_ulps(result, inputs, terms, shape.dtype))
    return worst


def _results(op: Op, a: Arrays) -> list[torch.Tensor]:
    return [getattr(a, name) for name in (*op.written, *op.sums)]


def _check_ours(op: Op, shape: Shape, every: list[Arrays]) -> None:
    """Check that every set was written, and that the first and last are right everywhere."""
    for a in every:
        for name in op.written:
            if bool(getattr(a, name)[:: max(1, shape.rows - 1)].float().isnan().any()):
                raise SystemExit(f"membound left NaN in {shape}")
    for a in (every[0], every[-1]):
        worst = _worst(op, shape, a, _results(op, a))
        if not timing.is_right(worst, shape.dtype):
            raise SystemExit(f"membound is WRONG by {worst:.4g} ulp in {shape}")


def _time_peers(
    op: Op, clock: Clock, record: Record, names: list[str], every: list[Arrays]
) -> None:
    shape = record.shape
    for name in names:
        peer = op.peers[name]
        try:
            call = peer.make(every[0])
            if peer.in_place:  # in place in our outputs, on copies of the inputs
                for a in every:
                    for source, into in zip(op.read, op.written, strict=False):
                        getattr(a, into).copy_(getattr(a, source))
            got = call(every[0])
            results = got if isinstance(got, tuple) else (got,)
            worst = _worst(op, shape, every[0], results, timing.PEER_PATIENCE[shape.dtype])
            if not timing.is_plausible(worst, shape.dtype):
                record.notes.append(f"{name} is off by {worst:.3g} ulp, not timed")
                continue
            record.peers[name] = clock.microseconds([functools.partial(call, a) for a in every])
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(op: Op, clock: Clock, shape: Shape, names: list[str]) -> Record:
    moved = op.moved_bytes(shape)
    count = clock.sets(moved)
    every = buffers(op, shape, clock.device, count)
    ours = [functools.partial(op.ours, a) for a in every]
    for call in ours:
        call()
    _check_ours(op, shape, every)
    # One graph node that moves the same bytes, for any layout.
    elements = moved // (2 * timing.ITEM_BYTES[shape.dtype])
    copies = timing.copies(elements, shape, clock.device, count)
    record = Record(shape, clock.microseconds(ours), clock.microseconds(copies))
    record.yardstick = clock.yardstick(moved, record.copy)
    if shape.mixed or moved < MIXED_BELOW:
        half = max(1, count // 2)
        between = (copies[half:] + copies[:half])[: len(ours)]
        record.mixed = clock.between_copies(ours, between, record.copy)
    asked = names if shape.peers else [name for name in names if name == "torch"]
    _time_peers(op, clock, record, asked, every)
    return record


def main(ops: Op | Sequence[Op], description: str) -> None:
    """Run a benchmark with one report per op."""
    for op in [ops] if isinstance(ops, Op) else ops:
        _contest(op, description)


def _contest(op: Op, description: str) -> None:
    parser = arguments(description, "a dozen shapes")
    parser.add_argument("--shapes", type=sizes, metavar="ROWSxCOLS[:DTYPE[:LAYOUT]],...")
    options = parser.parse_args()
    shapes = options.shapes or (quick() if options.quick else goals() + others() + decode())
    run(options, op.name + op.variant, op.peers, shapes, functools.partial(measure, op))


def arguments(description: str, few: str = "the goals' shapes alone") -> argparse.ArgumentParser:
    """The options that all GPU benchmarks of ops share."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=few)
    parser.add_argument("--peers", default="all", help="all, none, or names with commas between")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    return parser


def run(
    options: argparse.Namespace,
    op: str,
    known: dict[str, Peer],
    shapes: Sequence[Any],
    record: Callable[[Clock, Any, list[str]], Record],
) -> None:
    """Measure every shape, print the table and write the report."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU and a torch that sees it")
    wanted = list(known) if options.peers == "all" else options.peers.split(",")
    versions = peers.installed([name for name in wanted if name in known], known)
    started = time.perf_counter()
    clock = Clock(options.device)
    name = torch.cuda.get_device_name(clock.index)
    report = Report(op, {"membound": membound.__version__, **versions}, name)
    with torch.cuda.device(clock.index):
        for shape in timing.progress(shapes):
            report.records.append(record(clock, shape, list(versions)))
    print(report.table())
    for note in report.notes():
        print(note)
    paths = report.write(options.output)
    print(f"{time.perf_counter() - started:.0f} s; written: {', '.join(map(str, paths))}")
