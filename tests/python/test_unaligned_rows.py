# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Many unaligned rows on a GPU, each array with its own offset from a 16-byte boundary, have the
bits of few rows; nothing outside of the rows is written or affects the results."""

from __future__ import annotations

import pytest
from torch_bits import every_second_column, same_bits

import membound

pytestmark = pytest.mark.gpu

# Widths around those where a row takes one more warp, thread or vector, 16-bit and wider.
COLS = (33, 65, 127, 255, 513, 1001, 2051, 3070, 4097, 4095, 8191, 8203, 16383, 4104, 8200)
# Offsets of x, dy, out, ... from a boundary, and the gap between rows, in elements.
PLACEMENTS = ((0, 0, 0, 0, 0), (1, 1, 1, 1, 0), (1, 0, 0, 0, 0), (0, 0, 3, 3, 0), (2, 5, 7, 7, 3))


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def generator(torch, seed):
    return torch.Generator(device="cuda").manual_seed(seed % 2**63)


class Buffer:
    """Rows within a buffer that is NaN around them."""

    def __init__(self, torch, values, offset, apart):
        rows, cols = values.shape
        self.torch = torch
        self.all = torch.full((16 + rows * (cols + apart) + 16,), torch.nan, device="cuda").to(
            values.dtype
        )
        self.at = torch.as_strided(self.all, (rows, cols), (cols + apart, 1), 16 + offset)
        self.at.copy_(values)

    def only_rows_were_written(self):
        self.at.fill_(self.torch.nan)
        return bool(self.all.isnan().all())


def rows_for(torch, cols, dtype):
    """Enough for persistent blocks, and not a multiple of their number."""
    return max(1027, min(5003, (24 << 20) // (cols * dtype.itemsize)))


def draw(torch, generator, rows, cols, dtype):
    values = torch.randn(rows, cols, device="cuda", generator=generator)
    for row in (0, 5, rows // 2, rows - 1):  # sums of squares out of range
        values[row] *= 1e20 if dtype != torch.float16 else 1e-6
    values[7] = 0
    return values.to(dtype)


def options_of(op):
    yield {}
    if "rms" in op:
        yield {"rounding": "before_weight", "weight_offset": 1.0}
    if "gated" in op:
        yield {"norm_before_gate": False}


DTYPES = ("float16", "bfloat16", "float32")
FORWARD = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "rms_norm_gated")


def check_norms(torch, generator, op, x, z, in_place, placed):
    """Check `placed`, pairs of a row count and a placement, against x and z read by elements."""
    cols = x.shape[1]
    call = getattr(membound, op)
    columns = [torch.randn(cols, device="cuda", generator=generator).to(x.dtype)]
    if "layer" in op:
        columns.append(torch.randn(cols, device="cuda", generator=generator).to(x.dtype))
    inputs = (x,) if op in ("rms_norm", "layer_norm") else (x, z)
    names = ("out", "residual_out") if op.startswith("add") else ("out",)
    for options in options_of(op):
        wanted = call(*(every_second_column(a) for a in inputs), *columns, **options)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for count, placement in placed:
            sources = [
                Buffer(torch, a[:count], at, placement[4])
                for a, at in zip(inputs, placement, strict=False)
            ]
            outs = [Buffer(torch, x[:count], at, placement[4]) for at in placement[2:4]]
            if in_place:
                outs = sources
            call(
                *(buffer.at for buffer in sources),
                *columns,
                **{name: out.at for name, out in zip(names, outs, strict=False)},
                **options,
            )
            for right, out in zip(wanted, outs, strict=False):
                assert same_bits(out.at, right[:count]), (cols, placement, count, options)
            for out in outs[: len(names)]:
                assert out.only_rows_were_written(), (cols, placement)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("in_place", [False, True])
def test_norms(torch, generator, op, dtype, in_place):
    dtype = getattr(torch, dtype)
    for i, cols in enumerate(COLS):
        rows = rows_for(torch, cols, dtype)
        x, z = (draw(torch, generator, rows, cols, dtype) for _ in range(2))
        # A row per block, and many rows.
        placed = ((300, PLACEMENTS[i % 5]), (rows, PLACEMENTS[i % 5]), (rows, PLACEMENTS[1]))
        check_norms(torch, generator, op, x, z, in_place, placed)


# Rows that share a warp, of 16-bit and wider elements: their lanes' second vectors are full, half
# full or almost empty, and rows start at even and odd elements.
NARROW = (17, 23, 33, 36, 47, 65, 95, 97, 100, 127, 150, 193, 202, 255, 257, 300, 383, 385, 511)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("in_place", [False, True])
def test_norms_of_narrow_contiguous_rows(torch, generator, op, dtype, in_place):
    dtype = getattr(torch, dtype)
    for i, cols in enumerate(NARROW):
        rows = 27003 if cols < 256 else 7003
        x, z = (draw(torch, generator, rows, cols, dtype) for _ in range(2))
        x[11, 3] = torch.nan
        x[13, :8] += 50  # far from the mean
        placed = [(rows, PLACEMENTS[i % 4]), (rows - 1, PLACEMENTS[0])]
        check_norms(torch, generator, op, x, z, in_place, placed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_of_narrow_contiguous_rows(torch, generator, dtype):
    dtype = getattr(torch, dtype)
    for cols in NARROW:
        rows = 27003 if cols < 256 else 7003
        x = Buffer(torch, draw(torch, generator, rows, cols, dtype), cols % 3, 0).at
        weight = torch.ones(cols, device="cuda", dtype=dtype)
        found = membound.layer_norm(x, weight, return_stats=True)[1:]
        wanted = membound.layer_norm(every_second_column(x), weight, return_stats=True)[1:]
        for got, right in zip(found, wanted, strict=True):
            assert same_bits(got, right), cols


BACKWARD = (
    "rms_norm_backward",
    "layer_norm_backward",
    "add_rms_norm_backward",
    "add_layer_norm_backward",
    "rms_norm_gated_backward",
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", BACKWARD)
def test_gradients(torch, generator, op, dtype):
    dtype = getattr(torch, dtype)
    call = getattr(membound, op)
    for i, cols in enumerate((*COLS, 20485, 24579, 32765)):
        rows = rows_for(torch, cols, dtype)
        placement = PLACEMENTS[i % len(PLACEMENTS)]
        dy, x, z = (
            torch.randn(rows, cols, device="cuda", generator=generator).to(dtype) for _ in range(3)
        )
        weight = torch.randn(cols, device="cuda", generator=generator).to(dtype)
        statistics = [torch.rand(rows, device="cuda", generator=generator) + 0.5]
        if "layer" in op:
            statistics.insert(0, torch.randn(rows, device="cuda", generator=generator))
        inputs = {
            "add_rms_norm_backward": (dy, z, x),
            "add_layer_norm_backward": (dy, z, x),
            "rms_norm_gated_backward": (dy, x, z),
        }.get(op, (dy, x))
        for options in options_of(op):
            found = []
            for at in (placement, (0, 0, 0, 0, 0)):
                outs = [Buffer(torch, x, offset, at[4]) for offset in at[2:4]]
                placed = [Buffer(torch, a, at[k], at[4]) for k, a in enumerate(inputs)]
                named = {"dx": outs[0].at} | ({"dz": outs[1].at} if "gated" in op else {})
                got = call(*(b.at for b in placed), weight, *statistics, **named, **options)
                found.append([a for a in got if a.dim() == 1])
                for first in range(0, rows, 480):
                    part = slice(first, first + 480)
                    wanted = call(
                        *(a[part].contiguous() for a in inputs),
                        weight,
                        *(a[part].contiguous() for a in statistics),
                        **options,
                    )
                    wanted = [a for a in wanted if a.dim() == 2]
                    for right, out in zip(wanted, outs, strict=False):
                        assert same_bits(out.at[part], right), (cols, at, first, options)
                for out in outs[: len(named)]:
                    assert out.only_rows_were_written(), (cols, at)
            for one, other in zip(*found, strict=True):
                assert same_bits(one, other), (cols, placement, options)
            if "gated" not in op and not options:
                h = x.double()
                if "layer" in op:
                    h = h - statistics[0].double()[:, None]
                h *= statistics[-1].double()[:, None]
                right = (dy.double() * h).sum(0)
                far = (found[0][0].double() - right).abs() / (dy.double() * h).abs().sum(0)
                assert float(far.max()) < 1e-5 + torch.finfo(dtype).eps, (cols, float(far.max()))
