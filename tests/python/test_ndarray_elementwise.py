# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Promotion, broadcasting and values of functions of each element, and the operators."""

from __future__ import annotations

import itertools
import operator
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from ndarrays import (
    DEVICES,
    DTYPES,
    FLOATS,
    INTEGERS,
    STANDARD,
    assert_same,
    every,
    numbers,
    shapes,
    strided,
    to_ndarray,
    to_numpy,
    values,
)

import membound.ndarray as nd

strict = pytest.importorskip("array_api_strict")

FLOATING = "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal sin"
FLOATING = [*FLOATING.split(), "sinh", "sqrt", "tan", "tanh"]
NUMERIC = [
    "abs",
    "ceil",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "negative",
    "positive",
    "round",
    "sign",
    "square",
    "trunc",
]
PAIRS = [
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
PAIRS += ["equal", "not_equal"]
FLOATING_PAIRS = ["divide", "atan2", "copysign", "hypot", "logaddexp", "nextafter"]
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
NUMPY_NAMES = {"round": "rint"}
# Decimal digits that functions without an exact result share with NumPy's.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-13}


def of_numpy_named(name):
    return getattr(np, NUMPY_NAMES.get(name, name))


def assert_close(x, expected, dtype, what):
    """Within rounding, exactly so where the result is not finite."""
    found = to_numpy(x).astype(np.float64)
    wide = expected.astype(np.float64)
    assert x.shape == expected.shape, what
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(found, wide, rtol=tolerance, atol=tolerance / 100, err_msg=what)


@pytest.mark.parametrize("names", [*itertools.product(STANDARD, STANDARD)], ids="-".join)
def test_promotion_is_that_of_the_standard(names):
    first, second = (getattr(nd, name) for name in names)
    theirs = [getattr(strict, name) for name in names]
    try:
        expected = strict.result_type(*theirs)
    except TypeError:
        return  # left open
    name = str(expected).rpartition(".")[2]
    assert nd.result_type(first, second).name == name
    assert (nd.zeros(1, dtype=first) == nd.zeros(2, dtype=second)).shape == (2,)
    if "bool" not in names:
        assert (nd.zeros(1, dtype=first) + nd.zeros(2, dtype=second)).dtype.name == name
    assert nd.can_cast(first, nd.result_type(first, second))


def test_promotion_across_kinds():
    assert nd.result_type(nd.int64, nd.float32) == nd.float32
    assert nd.result_type(nd.bool, nd.int8) == nd.int8
    assert (nd.ones(1, dtype=nd.int64) * 0.5).dtype == nd.float64
    assert nd.sqrt(nd.asarray([4])).tolist() == [2.0]
    assert (nd.asarray([1, 2]) / 2).tolist() == [0.5, 1.0]


def test_promotion_of_16_bit_floats():
    assert nd.result_type(nd.bfloat16, nd.float16) == nd.float32
    for name in ("float16", "bfloat16"):
        assert nd.result_type(getattr(nd, name), nd.float32) == nd.float32
        assert nd.result_type(nd.float64, getattr(nd, name)) == nd.float64
        assert (nd.ones(2, dtype=name) * 0.5).dtype.name == name
        assert not nd.can_cast(nd.float32, getattr(nd, name))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
def test_a_number_takes_the_dtype_of_the_array(dtype):
    x = nd.ones(2, dtype=dtype)
    for result in (x + 1, 1 + x, x * 2, 2 - x, x // 1, 3 % x, x**2):
        assert result.dtype.name == dtype
    for result in (x < 1, x == 1, x <= 1):
        assert result.dtype == nd.bool


@every(st.sampled_from(NUMERIC), values([*INTEGERS, *FLOATS]), examples=120)
def test_functions_of_numbers(device, name, array):
    if array.dtype.kind in "iu" and name in ("ceil", "floor", "round", "trunc"):
        expected = array
    elif array.dtype.kind == "u" and name == "sign":
        expected = np.minimum(array, 1)
    else:
        wide = array.astype(np.float64) if array.dtype.kind not in "iu" else array
        with np.errstate(all="ignore"):
            expected = np.asarray(of_numpy_named(name)(wide))
        expected = expected if expected.dtype == bool else expected.astype(array.dtype)
    assert_same(getattr(nd, name)(strided(array, device)), expected, name)


@every(st.sampled_from(FLOATING), values(FLOATS), examples=120)
def test_functions_of_floats(device, name, array):
    with np.errstate(all="ignore"):
        expected = np.asarray(of_numpy_named(name)(array.astype(np.float64)))
    dtype = array.dtype.name
    assert_close(getattr(nd, name)(strided(array, device)), expected, dtype, f"{name} {array}")


@st.composite
def pairs(draw, dtypes):
    """Two arrays of one dtype whose shapes broadcast."""
    dtype = draw(st.sampled_from(dtypes))
    found = draw(of_numpy.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4))
    return tuple(draw(values([dtype], shape)) for shape in found.input_shapes)


@every(st.sampled_from(PAIRS), pairs([*INTEGERS, *FLOATS]), examples=150)
def test_functions_of_pairs(device, name, pair):
    first, second = pair
    wide = pair if first.dtype.kind in "iu" else [array.astype(np.float64) for array in pair]
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(*wide))
    expected = expected if expected.dtype == bool else expected.astype(first.dtype)
    assert_same(getattr(nd, name)(strided(first, device), strided(second, device)), expected, name)


@every(st.sampled_from(FLOATING_PAIRS), pairs(["float32", "float64"]), examples=90)
def test_functions_of_pairs_of_floats(device, name, pair):
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(*pair))
    result = getattr(nd, name)(*(strided(array, device) for array in pair))
    assert_close(result, expected, expected.dtype.name, name)


@every(st.sampled_from(BITS), pairs(["bool", *INTEGERS]), examples=60)
def test_functions_of_bits(device, name, pair):
    expected = np.asarray(getattr(np, name)(*pair))
    assert_same(getattr(nd, name)(*(strided(array, device) for array in pair)), expected, name)
    assert_same(~strided(pair[0], device), np.asarray(~pair[0]))


@every(values(INTEGERS), st.integers(0, 7), examples=60)
def test_shifts(device, array, by):
    x = strided(array, device)
    number = np.asarray(by, dtype=array.dtype)
    assert_same(x << by, np.asarray(array << number))
    assert_same(x >> by, np.asarray(array >> number))


@every(pairs([*INTEGERS, "float32", "float64"]), examples=90)
def test_floor_division(device, pair):
    """The remainder has the divisor's sign; integers that are divided by zero give no result."""
    first, second = pair
    if first.dtype.kind in "iu":
        second = np.where(second == 0, np.ones((), dtype=second.dtype), second)
        if first.dtype.kind == "i":  # the least number / -1 does not fit
            second = np.where(second == -1, np.full((), 2, dtype=second.dtype), second)
    else:
        first, second = (
            np.where(np.isinf(array), 3.0, array).astype(array.dtype) for array in pair
        )
    x1, x2 = strided(first, device), strided(second, device)
    with np.errstate(all="ignore"):
        assert_same(x1 // x2, np.asarray(first // second))
        assert_same(x1 % x2, np.asarray(first % second))


@every(values(["int64", "float64", "float32"], finite=True), st.integers(0, 3), examples=40)
def test_powers(device, array, exponent):
    expected = np.asarray(array**exponent)
    result = strided(array, device) ** exponent
    if array.dtype.kind == "i":
        assert_same(result, expected)
    else:
        assert_close(result, expected, array.dtype.name, "pow")


def of_numbers(x, low, high):
    """Clip with the first NaN of x, low, high, and x where it equals a limit."""
    least = np.where((x >= low) | np.isnan(x), x, low)
    return np.where((least <= high) | np.isnan(least), least, high).astype(x.dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_long_arrays_are_clipped_to_numbers(device, dtype, seed):
    rng = np.random.default_rng(seed)
    ends = [0, 3, np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype in INTEGERS else []
    limits = ends or [-0.0, 0.0, 1.5, -np.inf, np.nan]
    for count in (1, 63, 1025, 9_001):
        x = numbers(dtype, count, int(rng.integers(2**32)), finite=False)
        x[::5] = rng.choice(np.array(limits, dtype), x[::5].shape)
        for low, high in itertools.product(limits, limits):
            expected = of_numbers(x, np.array(low, dtype), np.array(high, dtype))
            for step in (1, -2):
                found = nd.clip(to_ndarray(x, device)[::step], low, high)
                assert_same(found, expected[::step], (low, high))
                signs = np.signbit(to_numpy(found)) == np.signbit(expected[::step])
                assert (signs | np.isnan(expected[::step])).all(), (low, high)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_long_masks_choose(device, dtype, seed):
    rng = np.random.default_rng(seed)
    for count in (31, 64, 9_001):
        first, second = (
            numbers(dtype, count, int(rng.integers(2**32)), finite=False) for _ in range(2)
        )
        mask = rng.random(count) < 0.5
        operands = [to_ndarray(own, device) for own in (mask, first, second)]
        assert_same(nd.where(*operands), np.where(mask, first, second))
        assert_same(nd.where(*(x[::-1] for x in operands)), np.where(mask, first, second)[::-1])


DIVISIONS = ((nd.floor_divide, np.floor_divide), (nd.remainder, np.remainder))


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("device", DEVICES)
def test_divisions_of_all_bytes(device, dtype):
    limits = np.iinfo(dtype)
    every_byte = np.arange(limits.min, limits.max + 1).astype(dtype)
    first, second = np.repeat(every_byte, 256), np.tile(every_byte, 256)
    for mine, theirs in DIVISIONS:
        expected = theirs(first, second)
        assert_same(mine(to_ndarray(first, device), to_ndarray(second, device)), expected)
        for column, number in enumerate(every_byte):
            found = mine(to_ndarray(every_byte, device), int(number))
            assert_same(found, expected.reshape(256, 256)[:, column], number)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("dtype", [name for name in INTEGERS if not name.endswith("int8")])
@pytest.mark.parametrize("device", DEVICES)
def test_divisions_of_integers(device, dtype, seed):
    """Of every magnitude, by arrays and numbers, at multiples and beside them."""
    rng = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    most = limits.max
    for largest in (most, min(most, 2**52), min(most, 2**50 - 1), min(most, 2**31 - 1), 100):
        lowest = -largest - 1 if limits.min else 0
        drawn = rng.integers(0, largest, (2, 3_001), dtype=dtype, endpoint=True)
        first, second = drawn >> rng.integers(0, limits.bits, drawn.shape).astype(dtype)
        first, second = (
            np.where(rng.random(own.shape) < 0.5, own, own ^ np.array(-1).astype(dtype))
            if limits.min
            else own
            for own in (first, second)
        )
        first[:3], second[1:4] = (lowest, largest, 0), (0, lowest, largest)
        near = first - first % np.where(second == 0, 1, second).astype(dtype)
        near[::3] -= near[::3] > lowest
        for mine, theirs in DIVISIONS:
            for x in (first, near):
                pair = to_ndarray(x, device), to_ndarray(second, device)
                assert_same(mine(*pair), theirs(x, second), largest)
                assert_same(mine(*(own[::-2] for own in pair)), theirs(x, second)[::-2], largest)
                for number in second[:12]:
                    expected = theirs(x, np.full_like(x, number))
                    assert_same(mine(pair[0], int(number)), expected, number)


def divisions_of_floats(x, y):
    """Floor of the quotient and remainder, from the exact remainder of fmod."""
    rest = np.fmod(x, y)
    differ = (rest != 0) & ((y < 0) != (rest < 0))
    quotient = (x - rest) / y
    quotient = np.where(differ, quotient - 1, quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    whole = np.where(quotient == 0, np.copysign(0, x / y), whole)
    plain = (y == 0) | np.isinf(x) | np.isinf(y)
    remainder = np.where(rest == 0, np.copysign(0, y), np.where(differ, rest + y, rest))
    return np.where(plain, x / y, whole).astype(x.dtype), remainder.astype(x.dtype)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_divisions_of_floats(device, dtype, seed):
    """Near multiples, of quotients beyond what vectors take, of any bits; signs of zeros."""
    rng = np.random.default_rng(seed)
    count, bits = 5_003, np.dtype(dtype.replace("float", "uint"))
    size = 2.0 ** rng.integers(-2, 60, count)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).tiny, 1.0], dtype)
    y = rng.standard_normal(count).astype(dtype)
    multiples = (y * rng.integers(-999, 999, count)).astype(dtype)
    beside = (multiples.view(bits) + rng.integers(0, 3, count).astype(bits)).view(dtype)
    any_bits = np.frombuffer(rng.bytes(2 * count * bits.itemsize), dtype).reshape(2, count).copy()
    small = np.stack([rng.integers(0, 999, count).astype(bits).view(dtype) for _ in range(2)])
    quarters = rng.integers(-50, 50, (2, count)).astype(dtype) / 4
    pairs = [(x, y) for x in (multiples, beside, (y[::-1] * size).astype(dtype))]
    for x, by in (*pairs, any_bits, small, quarters):
        x, by = (np.where(rng.random(count) < 0.02, rng.choice(special, count), v) for v in (x, by))
        operands = to_ndarray(x, device), to_ndarray(by, device)
        for (mine, _), expected in zip(DIVISIONS, divisions_of_floats(x, by), strict=True):
            for found, wanted in (
                (mine(*operands), expected),
                (mine(*(own[::3] for own in operands)), expected[::3]),
            ):
                assert_same(found, wanted)
                sign = np.signbit(to_numpy(found)) == np.signbit(wanted)
                assert (sign | np.isnan(wanted)).all()
        for (mine, _), expected in zip(DIVISIONS, divisions_of_floats(x, by[:1]), strict=True):
            assert_same(mine(operands[0], float(by[0])), expected)


@every(st.data(), examples=70)
def test_where_and_clip(device, data):
    found = data.draw(of_numpy.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=4))
    dtype = data.draw(st.sampled_from(DTYPES))
    mask = data.draw(of_numpy.arrays(bool, found.input_shapes[0]))
    first, second = (data.draw(values([dtype], shape)) for shape in found.input_shapes[1:])
    operands = [strided(array, device) for array in (mask, first, second)]
    assert_same(nd.where(*operands), np.where(mask, first, second))
    if dtype != "bool":
        x = data.draw(values([dtype], found.input_shapes[0]))
        whole = strided(x, device)
        result = nd.clip(whole, *operands[1:])
        lower = np.maximum(x.astype(np.float64), first) if dtype in FLOATS else np.maximum(x, first)
        expected = np.minimum(lower, second).astype(first.dtype)
        assert_same(result, np.broadcast_to(expected, found.result_shape))
        assert_same(nd.clip(whole), x)
        for name, limit, same in (
            ("min", operands[1], nd.maximum),
            ("max", operands[2], nd.minimum),
        ):
            assert_same(nd.clip(whole, **{name: limit}), to_numpy(same(whole, limit)))


@every(
    pairs([*INTEGERS, *FLOATS]), st.sampled_from(["add", "sub", "mul"]), st.booleans(), examples=60
)
def test_writing_operators(device, pair, name, is_number):
    first, second = pair
    hypothesis.assume(np.broadcast_shapes(first.shape, second.shape) == first.shape)
    x = strided(first, device)
    view = x[...]
    other = 3 if is_number else strided(second, device)
    plain = getattr(operator, name)(x, other)
    x = getattr(operator, f"i{name}")(x, other)
    assert_same(x, to_numpy(plain))
    assert_same(view, to_numpy(plain))  # the same memory


@every(shapes(), shapes(), examples=30)
def test_shapes_that_do_not_broadcast(device, first, second):
    x1, x2 = nd.ones(first, device=device), nd.ones(second, device=device)
    try:
        expected = np.broadcast_shapes(first, second)
    except ValueError:
        with pytest.raises(ValueError, match="add"):
            nd.add(x1, x2)
        with pytest.raises(ValueError, match="broadcast"):
            nd.broadcast_shapes(first, second)
    else:
        assert nd.add(x1, x2).shape == expected == nd.broadcast_shapes(first, second)


WRONG = [
    (lambda x: nd.add(x, "1"), TypeError, "add"),
    (lambda _: nd.add(1, 2), TypeError, "add"),
    (lambda _: nd.exp([1.0]), TypeError, "exp"),
    (lambda x: nd.bitwise_and(x, x), TypeError, "bitwise_and"),
    (lambda x: nd.where(x, x, x), TypeError, "where"),
    (lambda x: x + 1j, TypeError, "complex"),
    (lambda x: x @ [1.0], TypeError, "list"),
    (lambda x: nd.add(x, nd.ones(3)), ValueError, "add"),
    (lambda _: nd.ones(2, dtype=nd.int8) + 1000, ValueError, "1000"),
    (lambda _: nd.asarray([1], dtype=nd.uint64) + nd.asarray([1]), TypeError, "uint64"),
    (lambda _: nd.asarray([True]) + nd.asarray([True]), TypeError, "bool"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_what_raises(call, error, text):
    with pytest.raises(error, match=text):
        call(nd.ones(2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (3,), (37, 5)])
def test_comparisons_of_bools(device, shape, seed):
    first, second = np.random.default_rng(seed).random((2, *shape)) < 0.5
    for name in ("equal", "not_equal", "logical_and", "logical_xor", "bitwise_or"):
        mine = (to_ndarray(np.asarray(one), device) for one in (first, second))
        assert_same(getattr(nd, name)(*mine), np.asarray(getattr(np, name)(first, second)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shape", [(301, 132), (301, 136), (5, 4100), (77, 131), (1, 9000), (40007,)]
)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "int64", "float64"])
def test_rows_columns_and_single_elements_are_broadcast(device, shape, dtype, seed):
    """Enough elements for blocks whose threads have vectors alone."""
    rng = np.random.default_rng(seed)
    full, row, column, one = (
        rng.integers(0, 9, size).astype(dtype)
        for size in (shape, shape[-1:], (*shape[:-1], 1), (1,) * len(shape))
    )
    condition = rng.random(shape[-1:]) < 0.5
    x = to_ndarray(full, device)
    for part in (row, column, one):
        y = to_ndarray(part, device)
        for name in ("equal", "bitwise_or") if dtype == "bool" else ("subtract", "less"):
            result, flipped = getattr(nd, name)(x, y), getattr(nd, name)(y, x)
            assert_same(result, getattr(np, name)(full, part), (name, part.shape))
            assert_same(flipped, getattr(np, name)(part, full), (name, part.shape))
        assert_same(nd.broadcast_to(y, shape).copy(), np.broadcast_to(part, shape))
        wide = nd.astype(nd.broadcast_to(y, shape), nd.float32)
        assert_same(wide, np.broadcast_to(part, shape).astype("f4"))
        chosen = nd.where(to_ndarray(condition, device), x, y)
        assert_same(chosen, np.where(condition, full, part))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_large_arrays_with_numbers_agree_on_both_devices(dtype, seed):
    """Vectors of both halves, rows that end between vectors, and numbers of a wider dtype."""
    host = np.random.default_rng(seed).integers(-99, 99, 3 * 70_001).astype("f4")
    calls = [
        lambda x: x * 2,
        lambda x: 3 - x,
        lambda x: x < 5,
        lambda x: nd.maximum(x, 1),
        lambda x: nd.clip(x, -3, 4),
        lambda x: nd.clip(x, nd.flip(x), 4),
        lambda x: nd.where(x < 1, x, 7),
    ]
    cpu, cuda = (
        nd.astype(to_ndarray(host, device), getattr(nd, dtype)) for device in ("cpu", "cuda")
    )
    for view in (
        lambda x: x,
        lambda x: x[1:],
        lambda x: x[:37],
        lambda x: x.reshape((3, -1))[:, :-1],
    ):
        for call in calls:
            assert_same(call(view(cuda)), to_numpy(call(view(cpu))))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "int64"])
@pytest.mark.parametrize("count", [8, 15, 4099, 40_003, 65_536])
def test_functions_have_the_same_bits_from_any_address_on(device, dtype, count, seed):
    rng = np.random.default_rng(seed)
    long, other = (to_ndarray(rng.uniform(-9, 9, count + 1).astype("f4"), device) for _ in "ab")
    long, other = (nd.astype(one, getattr(nd, dtype)) for one in (long, other))
    unaligned = long[1:], other[1:]
    aligned = [one.copy() for one in unaligned]
    names = ["add", "less_equal", "maximum", "floor_divide", "square"]
    if "float" in dtype:
        names += ["exp", "tanh", "isnan", "atan2", "divide", "signbit"]
    for name in names:
        binary = name in {"add", "less_equal", "maximum", "floor_divide", "atan2", "divide"}
        pairs = [both if binary else both[:1] for both in (unaligned, aligned)]
        views, copies = (getattr(nd, name)(*one) for one in pairs)
        assert_same(views, to_numpy(copies), name)
    expected = to_numpy(aligned[0]).astype("f4")
    assert_same(nd.astype(nd.negative(aligned[0]), nd.float32), -expected)


def test_in_place_results_keep_the_dtype():
    x = nd.ones(2, dtype=nd.float32)
    with pytest.raises(TypeError):
        x += nd.ones(2)
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        x += nd.ones((2, 2), dtype=nd.float32)
    assert x.tolist() == [1.0, 1.0]


@every(values(), st.sampled_from(DTYPES), examples=90)
def test_astype(device, array, dtype):
    hypothesis.assume(array.dtype.kind in "biu" or dtype in ("bool", *FLOATS))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = nd.astype(strided(array, device), dtype)
        expected = array.astype(x.dtype.name) if dtype != "bfloat16" else None
    if expected is None:
        assert_same(nd.astype(x, nd.float32), to_numpy(x).astype(np.float32))
        return
    assert_same(x, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_astype_copies_unless_told_not_to(device):
    x = to_ndarray(np.arange(3.0), device)
    same, copy = nd.astype(x, nd.float64, copy=False), nd.astype(x, nd.float64)
    x[0] = 7.0
    assert float(same[0]) == 7.0
    assert float(copy[0]) == 0.0


# NumPy's name and where its arguments are drawn from, besides all magnitudes.
VECTOR_FUNCTIONS = {
    "acos": ("arccos", -1, 1),
    "acosh": ("arccosh", 1, 50),
    "asin": ("arcsin", -1, 1),
    "asinh": ("arcsinh", -50, 50),
    "atan": ("arctan", -10, 10),
    "atanh": ("arctanh", -1, 1),
    "cos": ("cos", -1e7, 1e7),
    "cosh": ("cosh", -95, 95),
    "expm1": ("expm1", -95, 95),
    "log": ("log", 0, 1e7),
    "log10": ("log10", 0, 1e7),
    "log1p": ("log1p", -1, 1e4),
    "log2": ("log2", 0, 1e7),
    "sin": ("sin", -1e7, 1e7),
    "sinh": ("sinh", -95, 95),
    "tan": ("tan", -1e7, 1e7),
}


# The largest errors of float32 functions, in ulps; on processors without fused products too.
ULPS_OF_FLOAT32 = {
    **dict.fromkeys(("sin", "cos"), 0.57),
    **dict.fromkeys(("acos", "asin"), 0.75),
    **dict.fromkeys(("log", "log10", "log2"), 0.85),
    **dict.fromkeys(("acosh", "asinh", "atanh", "log1p", "pow"), 1.25),
    **dict.fromkeys(("atan", "cosh", "sinh"), 1.35),
    **dict.fromkeys(("atan2", "expm1", "tan"), 1.5),
}


def assert_float32_ulps(name, found, exact):
    """Errors where the result is a finite number; elsewhere, and in signs, both are the same."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("float32")
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert (np.signbit(found) == np.signbit(rounded))[~np.isnan(rounded)].all()
    ulps = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite]))
    assert ulps.max() < ULPS_OF_FLOAT32[name]


@pytest.mark.parametrize("name", VECTOR_FUNCTIONS)
def test_float32_functions_err_by_their_ulps(name, seed):
    theirs, least, most = VECTOR_FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    multiples = np.arange(1, 50000) * (np.pi / 2)
    powers = 2.0 ** np.arange(-149, 128)[:, None] * (1 + np.arange(-2, 3) * 2.0**-23)
    sizes = 10.0 ** rng.uniform(-44, 38.5, 50000)
    near = [1 + np.arange(-50, 50) * 2.0**-23, [0.0, 1.0, 1e8, np.inf, np.nan], powers.ravel()]
    x = np.concatenate([rng.uniform(0, 5, 50000), multiples, sizes, *near])
    x = np.concatenate([x, -x, rng.uniform(least, most, 50000)]).astype("float32")
    with np.errstate(all="ignore"):
        exact = getattr(np, theirs)(x.astype("float64"))
    assert_float32_ulps(name, np.asarray(getattr(nd, name)(nd.asarray(x))), exact)


has_longdouble = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="longdouble is no wider than float64"
)


def ulps_of_float64(found, exact):
    """Errors where the result is a finite number; elsewhere, and in signs, both are the same."""
    with np.errstate(all="ignore"):
        rounded = exact.astype("float64")
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~finite], rounded[~finite])
    assert (np.signbit(found) == np.signbit(rounded))[~np.isnan(rounded)].all()
    return np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(rounded[finite]))


@has_longdouble
@pytest.mark.parametrize("name", VECTOR_FUNCTIONS)
def test_float64_functions_err_by_two_ulps(name, seed):
    theirs, least, most = VECTOR_FUNCTIONS[name]
    rng = np.random.default_rng(seed)
    multiples = np.arange(1, 5000) * (np.pi / 2)
    sizes = 10.0 ** rng.uniform(-320, 308, 5000)
    near = [1 + rng.uniform(-1, 1, 2000) * 2.0 ** -rng.integers(1, 53, 2000), 2.0 ** np.arange(40)]
    more = [[0.0, 1.0, 1e8, 700.0, 709.9, 710.3, 745.5, 1e308, np.inf, np.nan]]
    x = np.concatenate([rng.uniform(0, 5, 5000), multiples, sizes, *near, *more])
    x = np.concatenate([x, -x, rng.uniform(least, most, 20000), rng.uniform(-1, 1, 5000)])
    with np.errstate(all="ignore"):
        exact = getattr(np, theirs)(x.astype(np.longdouble))
    found = np.asarray(getattr(nd, name)(nd.asarray(x)))
    assert ulps_of_float64(found, exact).max() < 2.5


@has_longdouble
@pytest.mark.parametrize(("name", "theirs"), [("atan2", "arctan2"), ("pow", "power")])
def test_float64_functions_of_two_err_by_two_ulps(name, theirs, seed):
    rng = np.random.default_rng(seed)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 5e-324, 1e308, np.inf, -np.inf, np.nan]
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    drawn = rng.standard_normal((2, 20001)) * 10.0 ** rng.uniform(-300, 300, (2, 20001))
    normal = rng.standard_normal((2, 9999))
    bases = np.stack([rng.uniform(0, 4, 9999), rng.uniform(-999, 999, 9999)])
    large = np.stack([rng.uniform(0, 2, 99_999), 10.0 ** rng.uniform(3, 300, 99_999)])
    x, y = np.concatenate([pairs, drawn, normal, bases, large, large * [[1], [-1]]], axis=1)
    with np.errstate(all="ignore"):
        exact = getattr(np, theirs)(x.astype(np.longdouble), y.astype(np.longdouble))
    found = np.asarray(getattr(nd, name)(nd.asarray(x), nd.asarray(y)))
    assert ulps_of_float64(found, exact).max() < 2.5


def test_powers_that_are_numbers_are_exact():
    exponents = np.arange(23.0)
    tens = nd.asarray(10.0**exponents)
    np.testing.assert_array_equal(np.asarray(nd.log10(tens)), exponents)
    np.testing.assert_array_equal(np.asarray(nd.pow(10.0, nd.asarray(exponents))), tens)
    wide = np.arange(-1022.0, 1024)
    np.testing.assert_array_equal(np.asarray(nd.log2(nd.asarray(2.0**wide))), wide)
    np.testing.assert_array_equal(np.asarray(nd.pow(2.0, nd.asarray(wide))), 2.0**wide)
    bases = np.arange(1.0, 2000)
    np.testing.assert_array_equal(np.asarray(nd.pow(nd.asarray(bases), 3.0)), bases**3)


@pytest.mark.parametrize(("name", "theirs"), [("atan2", "arctan2"), ("pow", "power")])
def test_float32_functions_of_two_err_by_their_ulps(name, theirs, seed):
    rng = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 1e-42, 3e38, np.inf, -np.inf, np.nan])
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    drawn = rng.standard_normal((2, 100001)) * 10.0 ** rng.uniform(-3, 3, (2, 100001))
    tiny = rng.standard_normal((2, 99999)) * 2.0 ** rng.uniform(-149, -90, (2, 99999))
    close = rng.uniform(0.5, 2, 99999) * (1 + rng.uniform(-0.1, 0.1, (2, 99999)))
    bases = np.stack([rng.uniform(0, 4, 99999), rng.uniform(-60, 60, 99999)])
    near_one = 1 + rng.uniform(-0.1, 0.1, 99999)
    powers = np.stack([near_one, rng.uniform(-130, 130, 99999) / np.log2(near_one)])
    x, y = np.concatenate([pairs, drawn, tiny, close, bases, powers], axis=1).astype("float32")
    with np.errstate(all="ignore"):
        exact = getattr(np, theirs)(x.astype("float64"), y.astype("float64"))
    assert_float32_ulps(name, np.asarray(getattr(nd, name)(nd.asarray(x), nd.asarray(y))), exact)
    with np.errstate(all="ignore"):
        exact = getattr(np, theirs)(x.astype("float64"), 2.5).astype("float32")
    found = np.asarray(getattr(nd, name)(nd.asarray(x), 2.5))
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=1e-44)
