# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax and cross entropy of unaligned rows on a GPU, each array with its own offset from a
boundary, have the bits of the generic kernel; nothing outside of the rows is written."""

from __future__ import annotations

import pytest
from test_unaligned_rows import DTYPES, PLACEMENTS, Buffer, generator, torch
from torch_bits import every_second_column, same_bits

import membound

pytestmark = pytest.mark.gpu
__all__ = ["generator", "torch"]

# Widths around those where a row takes one more lane, warp, thread or block, or has empty parts.
COLS = (1, 7, 9, 33, 100, 255, 513, 1001, 2051, 4097, 8191, 16385, 32001, 50257, 131073, 262143)
SCALES = (1.0, 0.37, 3.0)


def rows_for(cols):
    """More than are prefetched before the label is known, for the widths of one row per block."""
    return 1037 if 1000 < cols < 10000 else 37


def placements(count):
    """Offsets of each array, equal and different, and the gap between rows."""
    for placement in PLACEMENTS:
        yield [placement[i % 3] for i in range(count)], placement[4]
    yield [8 * i for i in range(count)], 8


def draw(torch, generator, cols, dtype):
    values = 3 * torch.randn(rows_for(cols), cols, device="cuda", generator=generator)
    values[5] *= 100
    values[6, : cols // 2] = -torch.inf
    values[7, cols // 3] = torch.nan
    values[8] = -torch.inf
    return values.to(dtype)


def same(torch, a, b):
    """Whether the bits are equal, except for those of NaN."""
    return same_bits(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))


def check(torch, inputs, wanted, call):
    """Check call(inputs, out) at all placements, into a new array and over the first input."""
    for starts, apart in placements(len(inputs) + 1):
        for in_place in (False, True):
            sources = [
                Buffer(torch, a, at, apart) for a, at in zip(inputs, starts[1:], strict=True)
            ]
            out = sources[0] if in_place else Buffer(torch, inputs[0], starts[0], apart)
            call([buffer.at for buffer in sources], out.at)
            assert same(torch, out.at, wanted), (wanted.shape, starts, apart, in_place)
            assert out.only_rows_were_written(), (wanted.shape, starts, apart)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(torch, generator, dtype):
    for i, cols in enumerate(COLS):
        x = draw(torch, generator, cols, getattr(torch, dtype))
        scale = SCALES[i % len(SCALES)]
        wanted = membound.softmax(every_second_column(x), scale=scale)

        def call(a, out, scale=scale):
            membound.softmax(*a, out=out, scale=scale)

        check(torch, [x], wanted, call)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_backward(torch, generator, dtype):
    for i, cols in enumerate(COLS):
        dy, y = (draw(torch, generator, cols, getattr(torch, dtype)) for _ in range(2))
        scale = SCALES[i % len(SCALES)]
        wanted = membound.softmax_backward(every_second_column(dy), y, scale=scale)

        def call(a, out, scale=scale):
            membound.softmax_backward(*a, dx=out, scale=scale)

        check(torch, [dy, y], wanted, call)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(torch, generator, dtype):
    kinds = ({}, {"label_smoothing": 0.1}, {"z_loss": 1e-3, "ignore_index": 3})
    for i, cols in enumerate(COLS):
        logits = draw(torch, generator, cols, getattr(torch, dtype))
        labels = torch.randint(cols, logits.shape[:1], device="cuda", generator=generator)
        edges = torch.arange(12, device="cuda") % cols
        labels[-24:] = torch.cat((edges, cols - 1 - edges))  # next to the aligned spans of memory
        labels[::9] = -100
        options = kinds[i % len(kinds)]
        gradient = torch.empty_like(logits)
        apart = every_second_column(logits)
        right = membound.cross_entropy(apart, labels, dlogits=gradient, dloss=0.5, **options)
        lse = membound.cross_entropy(apart, labels, return_lse=True, **options)[1]

        def both(a, out, labels=labels, options=options, right=right):
            loss = membound.cross_entropy(*a, labels, dlogits=out, dloss=0.5, **options)
            assert same(torch, loss, right), (a[0].shape, options)

        check(torch, [logits], gradient, both)
        dloss = torch.full_like(right, 0.5)

        def backward(a, out, labels=labels, options=options, lse=lse, dloss=dloss):
            membound.cross_entropy_backward(dloss, *a, labels, lse, dlogits=out, **options)

        check(torch, [logits], gradient, backward)
