# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Very many rows and wide rows on a GPU have the bits of few rows, or of rows of strided elements,
which other kernels compute."""

from __future__ import annotations

import pytest
from torch_bits import every_second_column, hard, same_bits

import membound

pytestmark = pytest.mark.gpu

# Widths that fill their lanes, of which a thread group computes two rows at a time, and others.
NARROW = (16, 32, 64, 128, 256, 512, 120, 264)
# 16-byte vectors of rows of one block, some with a quarter of the tile empty.
BLOCKS = (65, 96, 130, 192, 257, 288, 289, 384, 513, 700, 768, 769, 1024)
# 16-byte vectors of rows of persistent clusters, two to sixteen blocks, full tiles or not.
WIDE = (2049, 2560, 4096, 4104, 8192, 10000, 16384, 20001)
# 16-byte vectors of quantised activations, in lanes, warps and blocks, persistent where other tiles
# would leave threads idle: two or three vectors per thread, full tiles or not; and wider rows.
GATED = (1, 5, 16, 24, 64, 96, 97, 136, 192, 256, 352, 512, 704, 768, 1000, 1792, 2048, 3584)
# Unaligned: one vector of codes more than a warp, a block or all blocks hold, and fewer.
UNALIGNED = (181, 257, 497, 505, 1001, 2047, 4097, 6143, 8191, 8200, 12289, 16384, 18401, 20001)
GATES = (
    {"kind": "silu"},
    {"kind": "silu", "alpha": 1.702, "limit": 7.0, "up_offset": 1.0},
    {"kind": "gelu"},
    {"kind": "gelu_tanh"},
    {"kind": "sigmoid"},
    {"kind": "relu2"},
)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def draw(torch, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed % 2**63)
    return lambda *shape: torch.randn(*shape, device="cuda", generator=generator)


def check(torch, draw, dtype, rows, cols, few):
    """layer_norm's results and statistics, in any output, are those of `few` rows at a time."""
    x = hard(draw(rows, cols), dtype)
    weight, bias = (draw(cols).to(dtype) for _ in range(2))
    around = torch.full((rows + 2, cols + 16), torch.nan, device="cuda", dtype=dtype)
    out = around[1:-1, 8:-8]
    _, *statistics = membound.layer_norm(x, weight, bias, out=out, return_stats=True)
    wanted = [
        torch.cat(parts)
        for parts in zip(
            *(
                membound.layer_norm(x[at : at + few], weight, bias, return_stats=True)
                for at in range(0, rows, few)
            ),
            strict=True,
        )
    ]
    for got, right in zip((out, *statistics), wanted, strict=True):
        assert same_bits(got, right), cols
    assert same_bits(membound.layer_norm(x, weight, bias, out=x), wanted[0]), cols
    out.fill_(torch.nan)
    assert bool(around.isnan().all()), cols
    without = membound.layer_norm(out.normal_(), weight)
    assert same_bits(without[:9], membound.layer_norm(out[:9], weight)), cols


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_rows(torch, draw, dtype):
    for cols in NARROW:
        # More than about 2,112 blocks; the last pair has one row.
        rows = 2200 * (256 * 8 // cols) + 3
        check(torch, draw, getattr(torch, dtype), rows, cols, 500)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "add_rms_norm", "rms_norm_quant"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_of_blocks(torch, draw, dtype, name):
    """Blocks with two items per thread, of four vectors or three, and with a residual."""
    dtype, call = getattr(torch, dtype), getattr(membound, name)
    options = {"dtype": "float8_e4m3fn"} if "quant" in name else {}
    for vectors in BLOCKS:
        cols = vectors * 16 // dtype.itemsize
        inputs = [hard(draw(3001, cols), dtype) for _ in range(2 if "add" in name else 1)]
        weight = draw(cols).to(dtype)
        found = results(call(*inputs, weight, **options))
        for at in range(0, 3001, 500):
            rows = slice(at, at + 50)
            few = [every_second_column(one[rows]) for one in inputs]
            for got, right in zip(found, results(call(*few, weight, **options)), strict=True):
                assert same_bits(got[rows], right), (cols, at)


@pytest.mark.parametrize("vectors", WIDE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_wide_rows(torch, draw, dtype, vectors):
    dtype = getattr(torch, dtype)
    check(torch, draw, dtype, 1091, vectors * 16 // dtype.itemsize, 100)


SCALES = ("row", "static", 64, 128)


def scale_options(torch, scale, number):
    options = {"dtype": ("float8_e4m3fn", "int8", "float8_e5m2")[number % 3]}
    if scale == "static":
        return options | {"scale": torch.full((), 0.0625, device="cuda")}
    return options if scale == "row" else options | {"group_size": scale}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_codes_of_wide_rows(torch, draw, dtype, added, scale):
    dtype = getattr(torch, dtype)
    call = membound.add_rms_norm_quant if added else membound.rms_norm_quant
    for number, vectors in enumerate(WIDE):
        cols = vectors * 16 // dtype.itemsize
        inputs = [hard(draw(61, cols), dtype) for _ in range(2 if added else 1)]
        weight, options = draw(cols).to(dtype), scale_options(torch, scale, number)
        found = call(*inputs, weight, **options)
        wanted = call(*map(every_second_column, inputs), weight, **options)
        if scale == "static" and not added:
            found, wanted = [found], [wanted]
        for got, right in zip(found, wanted, strict=True):
            assert same_bits(got, right), (cols, options)


def results(found):
    return found if isinstance(found, tuple) else (found,)


def results_of_gates(x, cols, row_scale, options):
    """Results for adjacent gate and up, or for the gate alone."""
    up = None if "packing" in options else x[:, cols:]
    return results(membound.gated_activation_quant(x[:, :cols], up, row_scale=row_scale, **options))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_quantised_activations(torch, draw, dtype, scale):
    dtype = getattr(torch, dtype)
    for number, vectors in enumerate(GATED):
        cols = vectors * 16 // dtype.itemsize
        if cols % 128 != 0 and scale in (64, 128):
            continue
        # Two full waves of all blocks and a partial third.
        rows = 2 * 132 * 32 // max(1, vectors // 96) + 211
        x = hard(draw(rows, 2 * cols), dtype)
        row_scale = draw(rows) if number % 3 == 1 else None
        options = GATES[number % len(GATES)] | scale_options(torch, scale, number)
        if options["kind"] in ("sigmoid", "relu2"):
            options["packing"] = "gate"
        wanted = results_of_gates(every_second_column(x), cols, row_scale, options)
        for few in (rows, 1000, 100, 1):  # blocks of 128 or 64 threads, persistent or not
            scales = None if row_scale is None else row_scale[:few]
            found = results_of_gates(x[:few], cols, scales, options)
            for got, right in zip(found, wanted, strict=True):
                assert same_bits(got, right[:few]), (few, cols, options)


@pytest.mark.parametrize("scale", ["row", "static"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_unaligned_quantised_activations(torch, draw, dtype, scale):
    """Rows and codes have different alignments; nothing outside of the codes is written."""
    dtype = getattr(torch, dtype)
    for number, cols in enumerate(UNALIGNED):
        rows = 2 * 132 * 32 // max(1, cols // 512) + 211
        x = hard(draw(rows, 2 * cols + number % 3), dtype)[:, number % 3 :]
        row_scale = draw(rows) if number % 3 == 1 else None
        options = GATES[number % len(GATES)] | scale_options(torch, scale, number)
        if options["kind"] in ("sigmoid", "relu2"):
            options["packing"] = "gate"
        wanted = results_of_gates(every_second_column(x), cols, row_scale, options)
        around = torch.full((rows + 2, cols + 8), 0x55, device="cuda", dtype=torch.uint8)
        out = around.view(wanted[0].dtype)[1:-1, 3 : cols + 3]
        for few in (rows, 100, 1):
            out.view(torch.uint8).fill_(0x55)
            scales = None if row_scale is None else row_scale[:few]
            found = results_of_gates(x[:few], cols, scales, options | {"out": out[:few]})
            for got, right in zip(found, wanted, strict=True):
                assert same_bits(got, right[:few]), (few, cols, options)
            out[:few].view(torch.uint8).fill_(0x55)
            assert bool((around == 0x55).all()), (few, cols, options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_contiguous_activations_with_a_static_scale(torch, draw, dtype):
    """Any width: they are computed as one row, unless the elements do not fill whole vectors."""
    dtype = getattr(torch, dtype)
    for number, (rows, cols) in enumerate([(64, 4097), (8, 9), (800, 33), (63, 1001), (1, 16)]):
        gate, up = (hard(draw(max(rows, 64), cols), dtype)[:rows] for _ in range(2))
        options = GATES[number] | scale_options(torch, "static", number)
        with_up = up if options["kind"] not in ("sigmoid", "relu2") else None
        if with_up is None:
            options["packing"] = "gate"
        found = membound.gated_activation_quant(gate, with_up, **options)
        second = [None if one is None else every_second_column(one) for one in (gate, with_up)]
        wanted = membound.gated_activation_quant(*second, **options)
        assert same_bits(found, wanted), (rows, cols, options)
