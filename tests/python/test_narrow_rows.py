# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Very many aligned rows of up to a warp on a GPU, heads included, have the bits of the generic
kernels."""

from __future__ import annotations

import pytest
from torch_bits import every_second_column, hard, same_bits

import membound

pytestmark = pytest.mark.gpu

# 16-byte vectors per row: a quarter of the lanes' vectors is empty, fewer are, or none.
VECTORS = (5, 6, 7, 8, 10, 12, 13, 16, 20, 24, 28, 32, 40, 48, 63, 64)
DTYPES = ("float16", "bfloat16", "float32")
FORWARD = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "rms_norm_gated")
HEADS = 8


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def draw(torch, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed % 2**63)
    return lambda *shape: torch.randn(*shape, device="cuda", generator=generator)


def many_rows(vectors):
    """Enough rows, in heads, for every kernel for many rows; not a multiple of a block's rows."""
    lanes = 1
    while 2 * lanes < vectors:
        lanes *= 2
    return (2 * 132 * 8 * (128 // lanes) // HEADS + 1) * HEADS


def layouts(values):
    """Contiguous rows, and the heads of a wider projection."""
    yield values
    rows, cols = values.shape
    wide = values.new_full((rows // HEADS, 3 * HEADS, cols), float("nan"))
    heads = wide[:, HEADS : 2 * HEADS]
    heads.copy_(values.view(heads.shape))
    yield heads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FORWARD)
def test_norms(torch, draw, op, dtype):
    dtype = getattr(torch, dtype)
    call = getattr(membound, op)
    statistics = {"return_stats": True} if "layer" in op else {"return_rstd": True}
    for vectors in VECTORS:
        cols = vectors * 16 // dtype.itemsize
        rows = many_rows(vectors)
        inputs = [hard(draw(rows, cols), dtype)]
        if op not in ("rms_norm", "layer_norm"):
            inputs.append(hard(draw(rows, cols), dtype))
        columns = [draw(cols).to(dtype) for _ in range(2 if "layer" in op else 1)]
        for before in (True, False) if "gated" in op else (None,):
            options = statistics | ({} if before is None else {"norm_before_gate": before})
            wanted = call(*map(every_second_column, inputs), *columns, **options)
            for placed in zip(*map(layouts, inputs), strict=True):
                found = call(*placed, *columns, **options)
                for got, right in zip(found, wanted, strict=True):
                    assert same_bits(got.reshape(right.shape), right), (cols, options)
            out = inputs[0].clone()
            found = call(out, *inputs[1:], *columns, out=out, **options)
            assert same_bits(out, wanted[0]), (cols, options)


@pytest.mark.parametrize("scale", ["row", "static", 64, 128])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes(torch, draw, dtype, added, scale):
    dtype = getattr(torch, dtype)
    call = membound.add_rms_norm_quant if added else membound.rms_norm_quant
    for number, vectors in enumerate(VECTORS):
        cols = vectors * 16 // dtype.itemsize
        rows = many_rows(vectors)
        inputs = [hard(draw(rows, cols), dtype) for _ in range(2 if added else 1)]
        weight = draw(cols).to(dtype)
        options = {"dtype": ("float8_e4m3fn", "int8", "float8_e5m2")[number % 3]}
        if scale == "static":
            options["scale"] = torch.full((), 0.0625, device="cuda")
        elif scale != "row":
            options["group_size"] = scale
        wanted = call(*map(every_second_column, inputs), weight, **options)
        for placed in zip(*map(layouts, inputs), strict=True):
            found = call(*placed, weight, **options)
            pairs = (
                zip(found, wanted, strict=True) if scale != "static" or added else [(found, wanted)]
            )
            for got, right in pairs:
                assert same_bits(got.reshape(right.shape), right), (cols, options)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_gradients(torch, draw, dtype, before):
    dtype = getattr(torch, dtype)
    for vectors in VECTORS:
        cols = vectors * 16 // dtype.itemsize
        rows = many_rows(vectors)
        dy, x, z = (hard(draw(rows, cols), dtype) for _ in range(3))
        weight = draw(cols).to(dtype)
        options = {"norm_before_gate": before}
        _, rstd = membound.rms_norm_gated(x, z, weight, return_rstd=True, **options)
        wanted = membound.rms_norm_gated_backward(
            *map(every_second_column, (dy, x, z)), weight, rstd, **options
        )
        for placed in zip(*map(layouts, (dy, x, z)), strict=True):
            placed_rstd = rstd.view(placed[0].shape[:-1])
            found = membound.rms_norm_gated_backward(*placed, weight, placed_rstd, **options)
            for got, right in zip(found, wanted, strict=True):
                assert same_bits(got.reshape(right.shape), right), cols
        given = {"dx": dy, "dz": z}
        found = membound.rms_norm_gated_backward(dy, x, z, weight, rstd, **given, **options)
        for got, right in zip(found, wanted, strict=True):
            assert same_bits(got, right), cols
