# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of few unaligned rows on a GPU, which are read in 4-byte vectors."""

from __future__ import annotations

import pytest
from torch_bits import every_second_column, hard, same_bits

import membound

pytestmark = pytest.mark.gpu

# Tails of every length after the last full vector; one to 32 lanes per row, some of them idle in
# the last block; blocks of one to 16 warps, and more rows than one wave of them.
COLS = [*range(1, 26), 31, 33, 47, 65, 100, 127, 129, 250, 300, 301, 319, 500, 511, 513, 1001, 1002]
COLS += [2047, 2050, 4093, 4100, 8189, 8190]
ROWS = [40, 301]
# Rows of one element have nothing to centre, and no first elements far from the others.
KINDS = ["float16", "bfloat16", "float32"]


def empty_layouts(torch, rows, cols, dtype):
    """Memory and rows in it: contiguous, one or two elements off, with gaps, in two axes."""
    for before, gap in ((0, 0), (1, 0), (2, 0), (1, 1), (0, 2), (2, 6)):
        memory = torch.full((rows * (cols + gap) + before,), torch.nan, device="cuda", dtype=dtype)
        yield memory, memory[before:].view(rows, cols + gap)[:, :cols]
    memory = torch.full((rows // 2, 3, cols + 1), torch.nan, device="cuda", dtype=dtype)
    if rows % 2 == 0:
        yield memory, memory[:, 1:, :cols]


def layouts(torch, values):
    rows, cols = values.shape
    for _, view in empty_layouts(torch, rows, cols, values.dtype):
        view.copy_(values.view(view.shape))
        yield view


def options(torch, cols, dtype):
    """Weights and biases of both dtypes that unaligned rows support, and further options."""
    columns = torch.randn(2, cols, device="cuda").to(dtype)
    wide = torch.randn(2, cols, device="cuda")
    yield columns[0].clone(), columns[1].clone(), {}
    yield wide[0].clone(), None, {"weight_offset": 1.0}
    yield None, wide[1].clone(), {}


def norms(x, other, weight, bias, more, **out):
    """Each norm's results, in one order; x and other may have any layout."""
    rounding = {"rounding": "before_weight"} if more else {}
    yield "rms_norm", membound.rms_norm(x, weight, return_rstd=True, **more, **rounding, **out)
    yield "layer_norm", membound.layer_norm(x, weight, bias, return_stats=True, **more, **out)
    yield "gated", membound.rms_norm_gated(x, other, weight, return_rstd=True, **more, **out)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", KINDS)
def test_bits_do_not_depend_on_strides_or_alignment(dtype, cols, rows, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed % 2**63)
    kind = getattr(torch, dtype)
    x = torch.randn(rows, cols, device="cuda")
    x = hard(x, kind) if cols > 8 and rows > 40 else x.to(kind)
    other = torch.randn(rows, cols, device="cuda").to(kind)
    for weight, bias, more in options(torch, cols, kind):
        wanted = dict(norms(every_second_column(x), every_second_column(other), weight, bias, more))
        for inputs in zip(layouts(torch, x), layouts(torch, other), strict=True):
            for name, found in norms(*inputs, weight, bias, more):
                for got, right in zip(found, wanted[name], strict=True):
                    assert same_bits(got.reshape(right.shape), right), (name, inputs[0].stride())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", KINDS)
def test_with_a_residual(dtype, cols, rows, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed % 2**63)
    kind = getattr(torch, dtype)
    x, residual = (torch.randn(rows, cols, device="cuda").to(kind) for _ in range(2))
    weight, bias = (torch.randn(cols, device="cuda").to(kind) for _ in range(2))

    def calls(x, residual):
        yield membound.add_rms_norm(x, residual, weight)
        yield membound.add_layer_norm(x, residual, weight, bias)

    wanted = list(calls(every_second_column(x), every_second_column(residual)))
    for inputs in zip(layouts(torch, x), layouts(torch, residual), strict=True):
        for pair, right in zip(calls(*inputs), wanted, strict=True):
            for got, one in zip(pair, right, strict=True):
                assert same_bits(got.reshape(one.shape), one), inputs[0].stride()


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", KINDS)
def test_nothing_is_written_outside_the_rows(dtype, cols, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed % 2**63)
    kind = getattr(torch, dtype)
    rows = ROWS[-1]
    x, residual = (torch.randn(rows, cols, device="cuda").to(kind) for _ in range(2))
    weight = torch.randn(cols, device="cuda").to(kind)
    wanted = membound.rms_norm(x, weight)
    sums = membound.add_rms_norm(x, residual, weight)
    layouts_of_sums = empty_layouts(torch, rows, cols, kind)
    for (memory, out), (sum_memory, total) in zip(
        empty_layouts(torch, rows, cols, kind), layouts_of_sums, strict=True
    ):
        membound.rms_norm(x, weight, out=out)
        assert same_bits(out, wanted), out.stride()
        assert memory.isnan().sum() == memory.numel() - x.numel(), out.stride()
        out.copy_(x)
        membound.rms_norm(out, weight, out=out)
        assert same_bits(out, wanted), out.stride()
        membound.add_rms_norm(x, residual, weight, out=out, residual_out=total)
        assert same_bits(out, sums[0]), out.stride()
        assert same_bits(total, sums[1]), out.stride()
        for whole in (memory, sum_memory):
            assert whole.isnan().sum() == whole.numel() - x.numel(), out.stride()
