# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""RMSNorm forward on a GPU beside a copy of the same bytes and the peers that are installed.

python benchmarks/bench_rms_norm.py            every shape, under four minutes on an H200
python benchmarks/bench_rms_norm.py --quick    a dozen shapes, under a minute
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import peers
import timing
import torch
from timing import Clock, Record, Report, Shape

import membound

EPS = 1e-6
MIXED_BELOW = 8 << 20  # bytes moved; longer calls hide their start and end


def _goals() -> list[Shape]:
    rows_and_cols = [(1, 4096), (16, 4096), (128, 4096), (1024, 4096), (4096, 4096), (16384, 4096)]
    rows_and_cols += [(8192, 8192), (8192, 16384), (2048, 65536), (524288, 128)]
    in_float32 = [(1024, 4096), (4096, 4096), (16384, 4096), (8192, 8192), (8192, 16384)]
    return [Shape(*size, peers=True) for size in rows_and_cols] + [
        Shape(*size, "float32", peers=True) for size in in_float32
    ]


def _others() -> list[Shape]:
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


def _decode() -> list[Shape]:
    widths = (2048, 4096, 5120, 8192)
    return [Shape(2**power, cols, mixed=True) for cols in widths for power in range(8)]


def _quick() -> list[Shape]:
    goals = [shape for shape in _goals() if shape.dtype == "bfloat16"]
    return [
        *goals,
        *(Shape(*size, "float32") for size in [(16384, 4096), (8192, 16384)]),
        Shape(1024, 131072),
        Shape(16384, 4097),
        Shape(16384, 4096, layout="off by one"),
    ]


def _sizes(text: str) -> list[Shape]:
    """Parse 16x4096:bfloat16,8192x8192:float32:off by one."""
    shapes = []
    for item in text.split(","):
        size, *rest = item.split(":")
        rows, cols = (int(part) for part in size.split("x"))
        shapes.append(Shape(rows, cols, *rest, peers=True))
    return shapes


def _formula(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return x * rstd * weight.double()


def _check_ours(shape: Shape, x: Any, out: Any, weight: torch.Tensor) -> None:
    """Every set was computed; the first and last are right everywhere."""
    if any(bool(one[:: max(1, shape.rows - 1)].isnan().any()) for one in out):
        raise SystemExit(f"membound left NaN in {shape}")
    for at in (0, -1):
        formula = functools.partial(_formula, weight)
        worst = timing.worst_ulps(out[at], x[at], formula, shape.dtype)
        if not timing.is_right(worst, shape.dtype):
            raise SystemExit(f"membound is WRONG by {worst:.4g} ulp in {shape}")


def _time_peers(
    clock: Clock, record: Record, names: list[str], x: Any, out: Any, weight: torch.Tensor
) -> None:
    shape = record.shape
    for name in names:
        try:
            peer = peers.RMS_NORM[name][1](weight, EPS)
            got = peer(x[0], out[0])
            formula = functools.partial(_formula, weight)
            worst = timing.worst_ulps(got, x[0], formula, shape.dtype)
            if not timing.is_plausible(worst, shape.dtype):
                record.notes.append(f"{name} is off by {worst:.3g} ulp, not timed")
                continue
            calls = [functools.partial(peer, a, b) for a, b in zip(x, out, strict=True)]
            record.peers[name] = clock.microseconds(calls)
        except Exception as error:  # noqa: BLE001 - a peer that refuses a shape is a result
            text = next(iter(str(error).splitlines()), "")[:80]
            record.notes.append(f"{name}: {type(error).__name__}: {text}")


def measure(clock: Clock, shape: Shape, names: list[str]) -> Record:
    sets = clock.sets(shape)
    x = timing.matrices(shape, clock.device, sets, readable=True)
    out = timing.matrices(shape, clock.device, sets, readable=False)
    weight = torch.randn(shape.cols, device=clock.device).to(timing.DTYPES[shape.dtype])
    ours = [
        functools.partial(membound.rms_norm, a, weight, eps=EPS, out=b)
        for a, b in zip(x, out, strict=True)
    ]
    for call in ours:
        call()
    _check_ours(shape, x, out, weight)
    plain = Shape(shape.rows, shape.cols, shape.dtype)
    copied = x
    if shape.layout != "contiguous":  # a copy of the same bytes, not of the same strides
        copied = timing.matrices(plain, clock.device, sets, readable=True)
    into = out if shape.layout != "off by one" else [torch.empty_like(a) for a in copied]
    copies = [functools.partial(b.copy_, a) for a, b in zip(copied, into, strict=True)]
    record = Record(shape, clock.microseconds(ours), clock.microseconds(copies))
    record.yardstick = clock.yardstick(shape, record.copy)
    if shape.mixed or shape.moved_bytes < MIXED_BELOW:
        half = max(1, sets // 2)
        others = (copies[half:] + copies[:half])[: len(ours)]
        record.mixed = clock.between_copies(ours, others, record.copy)
    asked = names if shape.peers else [name for name in names if name == "torch"]
    _time_peers(clock, record, asked, x, out, weight)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a dozen shapes")
    parser.add_argument("--shapes", type=_sizes, metavar="ROWSxCOLS[:DTYPE[:LAYOUT]],...")
    parser.add_argument("--peers", default="all", help="all, none, or names with commas between")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU and a torch that sees it")
    wanted = list(peers.RMS_NORM) if options.peers == "all" else options.peers.split(",")
    wanted = [name for name in wanted if name in peers.RMS_NORM]
    versions = peers.installed(wanted, peers.RMS_NORM)
    shapes = options.shapes or (_quick() if options.quick else _goals() + _others() + _decode())

    started = time.perf_counter()
    clock = Clock(options.device)
    name = torch.cuda.get_device_name(clock.index)
    report = Report("rms_norm", {"membound": membound.__version__, **versions}, name)
    with torch.cuda.device(clock.index):
        for shape in timing.progress(shapes):
            report.records.append(measure(clock, shape, list(versions)))
    print(report.table())
    for note in report.notes():
        print(note)
    paths = report.write(options.output)
    print(f"{time.perf_counter() - started:.0f} s; written: {', '.join(map(str, paths))}")


if __name__ == "__main__":
    main()
