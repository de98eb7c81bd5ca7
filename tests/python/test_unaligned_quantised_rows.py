# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Quantised norms of unaligned rows have the bits of rows of strided elements."""

from __future__ import annotations

import itertools

import pytest

import membound

torch = pytest.importorskip("torch")

KINDS = ("float8_e4m3fn", "int8", "float8_e5m2")
# Rows for one wave of persistent blocks, and for two and a part of a third.
SIZES = {"cpu": [(5, 1001), (9, 1029)], "cuda": [(3, 1001), (131, 4097), (2500, 1003), (700, 8191)]}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GUARD = 64  # elements around a result


@pytest.fixture
def draw(seed):
    generator = torch.Generator().manual_seed(seed % 2**63)
    return lambda *shape: torch.randn(*shape, generator=generator)


def hard(x):
    """Rows with sums of squares out of range, zeros, NaN, and one large number at either end."""
    x[0] *= 1e20
    x[1] = 0
    x[2, -1] = 1e4
    x[-1, 0] = 1e4
    x[-2, 3] = torch.nan
    return x


def moved(x, start, gap=0):
    """The same values, `start` elements after a boundary, with gaps between rows."""
    rows, cols = x.shape
    memory = torch.zeros(start + rows * (cols + gap), dtype=x.dtype, device=x.device)
    view = memory[start:].view(rows, cols + gap)[:, :cols]
    return view.copy_(x)


def strided(x):
    """The same values in every second element of memory."""
    wide = torch.zeros(len(x), 2 * x.shape[1], dtype=x.dtype, device=x.device)
    return wide[:, ::2].copy_(x)


def room_for_codes(like, kind, start, gap):
    rows, cols = like.shape
    memory = torch.full((GUARD + start + rows * (cols + gap) + GUARD,), 85, dtype=torch.int8)
    memory = memory.to(like.device)
    first = GUARD + start
    view = memory[first : first + rows * (cols + gap)].view(rows, cols + gap)[:, :cols]
    return memory, view.view(getattr(torch, kind))


def bits(x):
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return x.view(kinds[x.element_size()]) if x.stride(-1) == 1 else bits(x.contiguous())


def every(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_bits_wherever_rows_start(adds, static, dtype, device, draw):
    kind_of = itertools.cycle(KINDS)
    for number, (rows, cols) in enumerate(SIZES[device]):
        x, residual = (
            hard(draw(rows, cols)).to(getattr(torch, dtype)).to(device) for _ in range(2)
        )
        weight = draw(cols).to(x)
        scale = {"scale": torch.tensor(0.03125, device=device)} if static else {}
        function = membound.add_rms_norm_quant if adds else membound.rms_norm_quant
        for start in (0, 1, 3, 7):
            kind, gap = next(kind_of), (number + start) % 3
            memory, out = room_for_codes(x, kind, (5 * start + number) % 8, gap)
            inputs = [moved(x, start, gap)] + [moved(residual, 7 - start)] * adds
            found = function(*inputs, weight, out=out, dtype=kind, **scale)
            right = function(*map(strided, (x, residual)[: 1 + adds]), weight, dtype=kind, **scale)
            for got, wanted in zip(every(found), every(right), strict=True):
                assert torch.equal(bits(got), bits(wanted)), (rows, cols, start, kind)
            bits(out).fill_(85)
            assert (memory == 85).all(), (rows, cols, start, kind)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("over", ["x", "residual"])
def test_the_sum_over_an_input(over, static, dtype, device, draw):
    """The bulk pipeline reads no element of an input after it was overwritten."""
    for number, (rows, cols) in enumerate(SIZES[device]):
        x, residual = (
            hard(draw(rows, cols)).to(getattr(torch, dtype)).to(device) for _ in range(2)
        )
        weight = draw(cols).to(x)
        scale = {"scale": torch.tensor(0.03125, device=device)} if static else {}
        right = membound.add_rms_norm_quant(strided(x), strided(residual), weight, **scale)
        for start, gap in ((0, 0), (1, 0), (3, number % 3), (7, 1)):
            inputs = {"x": moved(x, start, gap), "residual": moved(residual, 7 - start, gap)}
            into = inputs[over]
            found = membound.add_rms_norm_quant(
                *inputs.values(), weight, residual_out=into, **scale
            )
            assert found[1] is into
            for got, wanted in zip(found, right, strict=True):
                assert torch.equal(bits(got), bits(wanted)), (rows, cols, start)
