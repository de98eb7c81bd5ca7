# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation_quant bit by bit: its definition, applied to the activation in float32."""

from __future__ import annotations

import arrays
import bad_calls
import numpy as np
import pytest
from arrays import LAYOUTS
from bad_calls import f32
from cases import drawn_for, layouts_like, needs
from gated_activations import GPT_OSS, PACKINGS, Case, draw_scale, vary
from quant_norms import (
    LIMITS,
    NAMES,
    SCALES,
    assert_same,
    gaps_are_untouched,
    numbers,
    place_codes,
    quantised,
)
from reference import DTYPES, NUMPY_DTYPES, QUANTISED

import membound
from membound.oracle.activations import KINDS

WIDTHS = (1, 7, 64, 100, 128, 136, 257, 1000, 4104)
GIVEN = 0.0625


def fits(one, kind):
    if kind not in one.quantised:
        pytest.skip(f"it has no {kind}")


def wide(one, array):
    """The values of an array in the accumulator's dtype."""
    values = np.array(one.numpy(array))
    return one.array(values.astype(np.float64 if values.dtype == np.float64 else np.float32))


def quant_options(one, kind, scale, bound=None):
    options = {"dtype": kind}
    if scale == "static":
        return options | {"scale": one.array(np.array(GIVEN, np.float32))}
    if scale != "row":
        options["group_size"] = scale
    return options if bound is None else options | {"scale_upper_bound": bound}


def check(case: Case, kind: str, scale, bound=None, out_layout: str = "") -> None:
    """Run one case; check every bit, the output arrays, and that inputs are unchanged."""
    one, cols = case.one, case.cols
    gate = case.place("gate", 3.0, 1 + case.packed)
    up = case.place("up") if case.packing == "apart" else None
    inputs = [each.array for each in (gate, up) if each is not None]
    keywords = case.keywords()
    shape = (*np.shape(gate.values)[:-1], cols)
    if case.row_scale:
        keywords["row_scale"] = draw_scale(case, shape)[0]
    y = np.array(one.numpy(membound.gated_activation(*(wide(one, a) for a in inputs), **keywords)))
    wanted, scales = quantised(y, kind, scale, bound, GIVEN)

    more = quant_options(one, kind, scale, bound)
    if out_layout:
        into = place_codes(one, LAYOUTS[out_layout], kind, case.rows, cols)
        more["out"] = into.array
        if scales is not None and one.strided:  # column by column
            empty = np.full(scales.shape[::-1], np.nan, np.float32)
            more["scale_out"] = one.permute(one.array(empty), list(range(scales.ndim))[::-1])
    found = membound.gated_activation_quant(*inputs, **keywords, **more)
    said = (case, kind, scale, bound, out_layout)
    assert isinstance(found, tuple) == (scale != "static"), said
    out, got = found if isinstance(found, tuple) else (found, None)
    assert_same(one.numpy(out), wanted, said)
    if scales is not None:
        assert_same(one.numpy(got), scales, said)
    if out_layout:
        assert out is more["out"], said
        assert got is more.get("scale_out", got), said
        assert gaps_are_untouched(one, LAYOUTS[out_layout], into, case.rows, cols), said
    for each in (gate, up):
        if each is not None:
            np.testing.assert_array_equal(one.numpy(each.array), each.values, str(said))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_scale_at_every_width(name, dtype, kind, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    rng = np.random.default_rng(seed)
    for cols in drawn_for(one, WIDTHS, rng):
        for scale in SCALES:
            case = Case(one, dtype, cols, 4, str(rng.choice(KINDS)), rng=rng)
            case.packing = str(rng.choice(PACKINGS))
            vary(case)
            out_layout = ""
            if one.takes_out and rng.integers(2):
                out_layout = str(rng.choice(layouts_like("contiguous", one, writable=True)))
            bound = rng.choice((None, 1.5 / LIMITS[kind])) if scale != "static" else None
            check(case, kind, scale, bound, out_layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_layout(name, layout, seed):
    one = arrays.framework(name)
    needs(one, "float32", layout)
    rng = np.random.default_rng(seed)
    for dtype in ("float16", "float32"):
        for cols, scale in ((33, "row"), (200, 64), (128, "static")):
            case = Case(one, dtype, cols, 4, layout=layout, rng=rng)
            writable = one.takes_out and LAYOUTS[layout].writable
            check(case, "int8", scale, out_layout=layout if writable else "")


@pytest.mark.parametrize(("rows", "cols"), [(3000, 64), (70, 5000), (2, 131073)])
@pytest.mark.parametrize("name", NAMES)
def test_many_rows_and_long_ones(name, rows, cols, seed):
    """Enough for several blocks of a GPU and several threads of a CPU."""
    one = arrays.framework(name)
    for scale in ("row", 128):
        rng = np.random.default_rng(seed)
        check(Case(one, "float16", cols, rows, rng=rng), one.quantised[0], scale)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [8192, 14336, 28672, 65536, 131072])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["torch-cuda", "jax-cuda", "cupy"])
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    """Rows that a block keeps in shared memory, and rows that it computes twice."""
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for scale in SCALES:
        for layout in ("contiguous", "off by one"):
            if LAYOUTS[layout].fits(one):
                case = Case(one, dtype, cols, 3, str(rng.choice(KINDS)), layout=layout, rng=rng)
                check(case, one.quantised[0], scale)


# --- numbers: relu2 of gates of 1 is 1, so that the result is up ---


def rows_of_numbers(one, values, dtype):
    up = np.asarray(values, np.float64).astype(NUMPY_DTYPES[dtype])
    gate, up = one.array(np.ones_like(up)), one.array(up)
    y = one.numpy(membound.gated_activation(wide(one, gate), wide(one, up), kind="relu2"))
    np.testing.assert_array_equal(y, one.numpy(up).astype(y.dtype))
    return gate, up, np.array(y)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_code_comes_back_and_ties_go_to_the_even_one(name, dtype, kind):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    known = numbers(kind)
    middle = ((known[:-1] + known[1:]) / 2).astype(NUMPY_DTYPES[dtype])
    around = [np.nextafter(middle, middle.dtype.type(to)) for to in (-6e4, 6e4)]
    every = np.concatenate([known, *(part.astype(np.float64) for part in (middle, *around))])
    values = np.tile(np.concatenate([every, -every]), (3, 1))
    gate, up, y = rows_of_numbers(one, values, dtype)
    scale = one.array(np.ones(1, np.float32))
    out = membound.gated_activation_quant(gate, up, kind="relu2", dtype=kind, scale=scale)
    assert_same(one.numpy(out), quantised(y, kind, "static")[0], kind)
    assert (one.numpy(out)[0, : known.size].astype(np.float64) == known).all()
    # The largest value is the limit, so that the row's dynamic scale is 1.
    again, scales = membound.gated_activation_quant(gate, up, kind="relu2", dtype=kind)
    assert_same(one.numpy(again), one.numpy(out), kind)
    assert (one.numpy(scales) == 1).all()


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_zeros_extremes_infinities_and_nan(name, dtype, kind):
    one = arrays.framework(name)
    needs(one, dtype)
    fits(one, kind)
    info = np.finfo(np.float64) if dtype == "float64" else None
    tiny = float(info.smallest_subnormal) if info else {"float16": 2.0**-24}.get(dtype, 2.0**-133)
    huge = {"float16": 65504.0, "float64": 1e308}.get(dtype, 3e38)
    rows = [(0.0, -0.0), (1.0, huge), (0.0, -huge), (tiny, -3 * tiny), (1.0, tiny)]
    rows += [(1.0, np.inf), (0.0, -np.inf), (-2.0, np.nan), (np.inf, np.nan)]
    values = np.full((len(rows), 150), 0.0)
    for row, (rest, special) in enumerate(rows):
        values[row] = rest
        values[row, 70 + 5 * row] = special
    gate, up, y = rows_of_numbers(one, values, dtype)
    for scale, bound in (("row", None), (64, None), (128, 1e-3), ("row", 1e-40)):
        options = quant_options(one, kind, scale, bound)
        out, scales = membound.gated_activation_quant(gate, up, kind="relu2", **options)
        wanted, wanted_scales = quantised(y, kind, scale, bound)
        assert_same(one.numpy(out), wanted, (scale, bound))
        assert_same(one.numpy(scales), wanted_scales, (scale, bound))
    for given in (0.25, -3.0, 0.0, 1e-42, np.inf, np.nan):
        static = one.array(np.array(given, np.float32))
        out = membound.gated_activation_quant(gate, up, kind="relu2", dtype=kind, scale=static)
        assert_same(one.numpy(out), quantised(y, kind, "static", given=given)[0], given)


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_scale_of_every_mantissa_is_a_quotient(device, kind):
    """Also around the smallest scale, at infinity and NaN."""
    torch = pytest.importorskip("torch")
    one = torch.arange(1 << 23, dtype=torch.int32, device=device) + 0x3F800000
    edges = torch.tensor([0.0, 1e-45, torch.inf, torch.nan], device=device)
    up = torch.cat([one.view(torch.float32), edges])[:, None].repeat(1, 4)
    for rows in (up, up * 2.0**-119):  # down to below the smallest
        gate = torch.ones_like(rows)
        _, scale = membound.gated_activation_quant(gate, rows, kind="relu2", dtype=kind)
        quotients = rows[:, 0].cpu().numpy() / np.float32(LIMITS[kind])
        wanted = np.maximum(quotients, np.float32(2.0**-126))
        np.testing.assert_array_equal(scale.cpu().numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_not_rounded_to_16_bits(name, dtype):
    """A product of two 16-bit values has more digits than 16 bits hold."""
    one = arrays.framework(name)
    needs(one, dtype)
    gate = np.ones((1, 8), NUMPY_DTYPES[dtype])
    up = (1 + np.arange(8) / 128).astype(gate.dtype).reshape(1, 8)
    scale = np.float32([1 + 3 * 2.0**-7])
    y = up.astype(np.float32) * scale[:, None]
    got = membound.gated_activation_quant(
        one.array(gate), one.array(up), kind="relu2", dtype="int8", row_scale=one.array(scale)
    )
    assert one.numpy(got[1])[0] == y.max() / np.float32(127)
    assert one.numpy(got[1])[0] != np.float32(y.max().astype(gate.dtype)) / np.float32(127)


# --- names, kinds of results, threads ---


def test_an_alias_is_its_kind_and_gpt_oss_is_its_formula(seed):
    rng = np.random.default_rng(seed)
    packed = rng.standard_normal((3, 2 * 70)).astype(np.float32) * 8
    options = {"packing": "interleaved", "dtype": "int8", "group_size": 64, **GPT_OSS}
    wanted = membound.gated_activation_quant(packed, **options)
    for got, right in zip(membound.silu_and_mul_quant(packed, **options), wanted, strict=True):
        assert_same(got, right, "alias")
    gate, up = (packed[:, at::2].astype(np.float64) for at in (0, 1))
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    y = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
    back = wanted[0] * np.repeat(wanted[1], [64, 6], axis=-1)
    assert np.abs(back - y).max() <= 0.51 * wanted[1].max()


@pytest.mark.parametrize("shape", [(8,), (1, 64), (2, 3, 130), (0, 8), (2, 0, 70)])
@pytest.mark.parametrize("name", NAMES)
def test_the_results_are_of_the_callers_kind(name, shape):
    one = arrays.framework(name)
    packed = one.array(np.ones(shape, np.float32))
    half = (*shape[:-1], shape[-1] // 2)
    for kind in one.quantised:
        out, scale = map(one.numpy, membound.silu_and_mul_quant(packed, dtype=kind))
        assert (out.dtype, out.shape, out.flags.c_contiguous) == (QUANTISED[kind], half, True)
        assert (scale.dtype, scale.shape) == (np.float32, half[:-1])
        _, scale = map(one.numpy, membound.silu_and_mul_quant(packed, dtype=kind, group_size=64))
        assert scale.shape == (*half[:-1], -(-half[-1] // 64))


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_the_number_of_threads_changes_nothing(threads, seed):
    rng = np.random.default_rng(seed)
    data = [rng.standard_normal(shape).astype(np.float16) for shape in ((4096, 64), (300, 8194))]
    wanted = [membound.silu_and_mul_quant(x, group_size=128) for x in data]
    try:
        membound.set_cpu_threads(threads)
        for x, results in zip(data, wanted, strict=True):
            got = membound.silu_and_mul_quant(x, group_size=128)
            for mine, right in zip(got, results, strict=True):
                assert_same(mine, right, x.shape)
    finally:
        membound.set_cpu_threads(0)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [1000, 1024, 50000])
def test_graph_capture(cols, seed):
    torch = arrays.torch_with_cuda()
    generator = torch.Generator("cuda").manual_seed(seed % 2**31)
    x = torch.randn(37, 2 * cols, device="cuda", dtype=torch.bfloat16, generator=generator)
    static = torch.tensor(0.02, device="cuda")
    codes = [torch.empty(37, cols, device="cuda", dtype=torch.float8_e4m3fn) for _ in range(3)]
    rows = torch.empty(37, device="cuda")
    groups = torch.empty(-(-cols // 128), 37, device="cuda").T

    def run():
        membound.silu_and_mul_quant(x, out=codes[0], scale_out=rows)
        membound.silu_and_mul_quant(x, out=codes[1], scale_out=groups, group_size=128)
        membound.silu_and_mul_quant(x, out=codes[2], scale=static)

    run()
    torch.cuda.synchronize()
    written = [*(code.view(torch.uint8) for code in codes), rows, groups]
    right = [one.clone() for one in written]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for one in written:
        one.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(written, right, strict=True))


# --- errors ---


def i8(*shape):
    return np.ones(shape or (3, 4), np.int8)


def codes_over_the_gate():
    gate = f32()
    return {"gate": gate, "out": gate.view(np.int8)[:, :4]}


def scales_in_up():
    up = f32()
    return {"up": up, "scale_out": up[:, 1]}


def scales_over_row_scale():
    row_scale = f32(3)
    return {"row_scale": row_scale, "scale_out": row_scale}


STATIC = np.array(1.0, np.float32)
BAD = [
    ("an odd width", lambda: {"gate": f32(3, 5), "up": None}, ValueError, "gate"),
    ("no such kind", lambda: {"kind": "tanh"}, ValueError, "kind"),
    ("no such packing", lambda: {"up": None, "packing": "thirds"}, ValueError, "packing"),
    ("another shape", lambda: {"up": f32(3, 5)}, ValueError, "up"),
    ("alpha of 0", lambda: {"alpha": 0.0}, ValueError, "alpha"),
    ("scales of another shape", lambda: {"row_scale": f32(4)}, ValueError, "row_scale"),
    ("unknown dtype", lambda: {"dtype": "int4"}, TypeError, "dtype"),
    ("out in floating numbers", lambda: {"out": f32()}, TypeError, "out"),
    ("out is not the dtype", lambda: {"out": i8(), "dtype": "float8_e5m2"}, TypeError, "out"),
    ("out of another shape", lambda: {"out": i8(4, 3)}, ValueError, "out"),
    ("out in the gate", codes_over_the_gate, ValueError, "out"),
    ("a scale of two", lambda: {"scale": f32(2)}, ValueError, "scale"),
    ("static and groups", lambda: {"scale": STATIC, "group_size": 64}, ValueError, "group_size"),
    (
        "static and scale_out",
        lambda: {"scale": STATIC, "scale_out": f32(3)},
        TypeError,
        "scale_out",
    ),
    ("groups of 32", lambda: {"group_size": 32}, ValueError, "group_size"),
    ("bound of 0", lambda: {"scale_upper_bound": 0}, ValueError, "scale_upper_bound"),
    ("scale_out of another shape", lambda: {"scale_out": f32(3, 1)}, ValueError, "scale_out"),
    ("scale_out in up", scales_in_up, ValueError, "scale_out"),
    ("scale_out over row_scale", scales_over_row_scale, ValueError, "scale_out"),
    ("a stream on the CPU", lambda: {"stream": 0}, ValueError, "stream"),
]


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_calls_say_what_is_wrong(call, expected, argument):
    good = {"gate": f32(), "up": f32()}
    bad_calls.check(membound.gated_activation_quant, call(), good, expected, argument)


def test_torch_tensors_that_require_grad():
    torch = pytest.importorskip("torch")
    gate = torch.ones(3, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^silu_and_mul_quant: argument 'gate' requires grad"):
        membound.silu_and_mul_quant(gate)
    with torch.no_grad():
        assert membound.silu_and_mul_quant(gate)[0].shape == (3, 4)
