# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""gated_activation and its aliases against wider arithmetic, torch, and bad calls."""

from __future__ import annotations

import itertools
import math

import arrays
import bad_calls
import numpy as np
import pytest
import reference
from arrays import LAYOUTS
from bad_calls import f32
from cases import needs
from gated_activations import GPT_OSS, PACKINGS, WIDTHS, Case, check, vary
from gradients import FRAMEWORKS, ON_GPU
from reference import DTYPES, NUMPY_DTYPES

import membound
from membound.oracle.activations import KINDS, gated_activation


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_layout_at_some_widths(name, dtype, layout, seed):
    one = arrays.framework(name)
    needs(one, dtype, layout)
    rng = np.random.default_rng(seed)
    for cols in map(int, rng.choice(WIDTHS, 3, replace=False)):
        kind = str(rng.choice(KINDS))
        case = Case(one, dtype, cols, 4, kind, layout=layout, rng=rng)
        case.packing = str(rng.choice(PACKINGS))
        vary(case)
        check(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_kind_and_packing(name, dtype, kind, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for packing in PACKINGS:
        case = Case(one, dtype, int(rng.choice(WIDTHS)), 3, kind, packing, rng=rng)
        vary(case)
        check(case)


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [16384, 65537, 131072])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_GPU)
def test_long_rows_on_a_gpu(name, dtype, cols, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    rng = np.random.default_rng(seed)
    for packing, kind in itertools.product(("apart", "halves"), ("silu", "gelu")):
        check(Case(one, dtype, cols, 3, kind, packing, rng=rng))


# The last gate whose exponential is not 0, and some on either side of it.
EXTREMES = (0.0, -0.0, 1e-30, -1e-30, 1.0, -1.0, 11.0, 12.0, 30.0, 90.0, 1e4, -3.0, -8.0, -10.5)
EXTREMES += (-12.4, -12.6, -13.5, -14.0, -20.0, -79.0, -81.0, -87.5, -95.0, -103.0, -103.5, -1e4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_extreme_gates(name, dtype, kind):
    """Also subnormal values, and values that only the product with up makes large."""
    one = arrays.framework(name)
    needs(one, dtype)
    gates = EXTREMES if dtype != "float64" else (*EXTREMES, -37.3, -705.0, -740.0)
    gate = np.tile(np.array(gates), (4, 1)).astype(NUMPY_DTYPES[dtype])
    large = 1e30 if dtype in ("float32", "float64") else 1e3
    up = np.ones_like(gate) * np.array([[1.0], [-1.0], [large], [1.0 / large]]).astype(gate.dtype)
    got = membound.gated_activation(one.array(gate), one.array(up), kind=kind)
    dgate, dup = membound.gated_activation_backward(
        one.array(np.ones_like(gate)), one.array(gate), one.array(up), kind=kind
    )
    want = gated_activation(gate, up, np.ones_like(gate), dtype, kind=kind)
    for what, found in (("out", got), ("dgate", dgate), ("dup", dup)):
        reference.assert_within(one.numpy(found), want[what], (what, gate[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_infinities_and_nan(name, dtype):
    one = arrays.framework(name)
    needs(one, dtype)
    gate = one.array(np.array([np.inf, -np.inf, np.nan]).astype(NUMPY_DTYPES[dtype]))
    wanted = {
        "sigmoid": ([1, 0, np.nan], [0, 0, np.nan]),
        "situ": ([4, 0, np.nan], [0, 0, np.nan]),
    }
    for kind in KINDS:
        values, slopes = wanted.get(kind, ([np.inf, 0, np.nan], [1, 0, np.nan]))
        got = membound.gated_activation(gate, packing="gate", kind=kind)
        np.testing.assert_array_equal(one.numpy(got).astype(float), values)
        ones = one.array(np.ones(3, NUMPY_DTYPES[dtype]))
        got = membound.gated_activation_backward(ones, gate, packing="gate", kind=kind)
        slopes = [np.inf, 0, np.nan] if kind == "relu2" else slopes
        if kind == "relu":  # as in torch: the slope is 0 unless the gate is above 0
            slopes = [1, 0, 0]
        np.testing.assert_array_equal(one.numpy(got).astype(float), slopes)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_bit_depends_on_the_rows_beside_or_the_place(name, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    for dtype, kind in itertools.product(("bfloat16", "float32"), KINDS):
        needs(one, dtype)
        packed = (rng.standard_normal((67, 2 * 100)) * 4).astype(NUMPY_DTYPES[dtype])
        whole = one.numpy(membound.gated_activation(one.array(packed), kind=kind))
        alone = one.numpy(membound.gated_activation(one.array(packed[3:4].copy()), kind=kind))
        assert alone.tobytes() == whole[3:4].tobytes()
        halves = [one.array(part.copy()) for part in (packed[:, 1:100], packed[:, 101:])]
        apart = one.numpy(membound.gated_activation(*halves, kind=kind))
        assert apart.tobytes() == whole[:, 1:].tobytes()


# Another axis than the last is contiguous, in all matrices or all but one; with gaps between lines.
PLACED = (((130, 7), (1, 0)), ((3, 40, 5), (0, 2, 1)), ((3, 40, 5), (1, 2, 0)))


@pytest.mark.parametrize("other", [None, "gate", "up", "dy"])
@pytest.mark.parametrize(("shape", "axes"), PLACED)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_no_bit_depends_on_the_order_of_axes(name, shape, axes, other, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    matrices = {key: rng.standard_normal(shape).astype("f4") for key in ("gate", "up", "dy")}

    def placed(key):
        """The same elements as a view of a wider array with these axes."""
        if key == other or not one.strided:
            return one.array(matrices[key])
        inside = np.transpose(matrices[key], axes)
        wide = np.full((*inside.shape[:-1], inside.shape[-1] + 3), np.nan, "f4")
        wide[..., : inside.shape[-1]] = inside
        back = list(np.argsort(axes))
        return one.permute(one.array(wide)[..., : inside.shape[-1]], back)

    expected = membound.silu_and_mul(*(one.array(matrices[key]) for key in ("gate", "up")))
    got = membound.silu_and_mul(placed("gate"), placed("up"))
    assert one.numpy(got).tobytes() == one.numpy(expected).tobytes()
    expected = membound.silu_and_mul_backward(
        *(one.array(matrices[key]) for key in ("dy", "gate", "up"))
    )
    got = membound.silu_and_mul_backward(placed("dy"), placed("gate"), placed("up"))
    for ours, wanted in zip(got, expected, strict=True):
        assert one.numpy(ours).tobytes() == one.numpy(wanted).tobytes()
    if one.takes_out:
        out = placed("gate")
        membound.silu_and_mul(out, placed("up"), out=out)
        wanted = membound.silu_and_mul(*(one.array(matrices[key]) for key in ("gate", "up")))
        assert one.numpy(out).tobytes() == one.numpy(wanted).tobytes()


@pytest.mark.parametrize("count", [1, 3])
def test_no_bit_depends_on_the_number_of_threads(count, seed):
    rng = np.random.default_rng(seed)
    shapes = ((1, 400_001), (700, 333), (3, 2 * 100_000))
    gates = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    before = membound.cpu_threads()
    calls = [lambda g=g: membound.relu2(g) * membound.silu_and_mul(g, g) for g in gates]
    calls.append(lambda: membound.silu_and_mul(gates[2], packing="interleaved"))
    membound.set_cpu_threads(count)
    try:
        found = [call() for call in calls]
    finally:
        membound.set_cpu_threads(before)
    assert [one.tobytes() for one in found] == [call().tobytes() for call in calls]


def test_gpt_oss_as_its_model_computes_it():
    torch = arrays.package("torch")
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(5, 2 * 64, dtype=torch.float64, generator=generator) * 8
    gate, up = packed[..., ::2].clamp(max=7.0), packed[..., 1::2].clamp(-7.0, 7.0)
    want = (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    got = membound.silu_and_mul(packed, packing="interleaved", **GPT_OSS)
    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


def test_every_alias_is_its_kind(seed):
    rng = np.random.default_rng(seed)
    packed = rng.standard_normal((3, 10))
    for name, kind in {
        "silu_and_mul": "silu",
        "gelu_and_mul": "gelu",
        "gelu_tanh_and_mul": "gelu_tanh",
        "sigmoid_and_mul": "sigmoid",
    }.items():
        alias, backward = getattr(membound, name), getattr(membound, f"{name}_backward")
        options = {"limit": 1.0, "up_offset": 0.5, "row_scale": np.array([1.0, 2.0, 3.0])}
        want = membound.gated_activation(packed, kind=kind, **options)
        np.testing.assert_array_equal(alias(packed, **options), want)
        dy = rng.standard_normal((3, 5))
        want = membound.gated_activation_backward(dy, packed, kind=kind, **options)
        np.testing.assert_array_equal(backward(dy, packed, **options), want)
    np.testing.assert_array_equal(membound.relu2(packed), np.maximum(packed, 0) ** 2)
    np.testing.assert_array_equal(
        membound.relu2_backward(packed, packed), 2 * np.maximum(packed, 0) * packed
    )


def partly_over_the_gate():
    buffer = f32(5, 4)
    return {"gate": buffer[:3], "up": f32(), "out": buffer[1:4]}


APART = {"gate": f32(), "up": f32()}
BAD = [
    ("a list", lambda: {"gate": [1.0]}, TypeError, "gate"),
    ("integers", lambda: {"gate": np.ones((3, 4), np.int32), "up": None}, TypeError, "gate"),
    ("another shape", lambda: {"up": f32(3, 5)}, ValueError, "up"),
    ("another dtype", lambda: {"up": np.ones((3, 4))}, TypeError, "up"),
    ("an odd width", lambda: {"gate": f32(3, 5), "up": None}, ValueError, "gate"),
    ("no columns", lambda: {"gate": np.ones((3, 0), np.float32), "up": None}, ValueError, "gate"),
    ("no such kind", lambda: {"kind": "tanh"}, ValueError, "kind"),
    ("a kind that is no text", lambda: {"kind": 3}, ValueError, "kind"),
    ("packing with up", lambda: {"packing": "interleaved"}, ValueError, "packing"),
    ("no such packing", lambda: {"up": None, "packing": "thirds"}, ValueError, "packing"),
    ("alpha of 0", lambda: {"alpha": 0.0}, ValueError, "alpha"),
    ("alpha of gelu", lambda: {"kind": "gelu", "alpha": 2.0}, ValueError, "alpha"),
    ("alpha that is text", lambda: {"alpha": "1"}, TypeError, "alpha"),
    ("limit of 0", lambda: {"limit": 0.0}, ValueError, "limit"),
    ("limit that is NaN", lambda: {"limit": float("nan")}, ValueError, "limit"),
    ("infinite offset", lambda: {"up_offset": float("inf")}, ValueError, "up_offset"),
    (
        "an offset to nothing",
        lambda: {"up": None, "packing": "gate", "up_offset": 1.0},
        ValueError,
        "up_offset",
    ),
    ("scales of another shape", lambda: {"row_scale": f32(4)}, ValueError, "row_scale"),
    ("scales of another dtype", lambda: {"row_scale": np.ones(3)}, TypeError, "row_scale"),
    ("out of another shape", lambda: {"out": f32(3, 3)}, ValueError, "out"),
    ("out of another dtype", lambda: {"out": np.ones((3, 4))}, TypeError, "out"),
    ("out that is read-only", lambda: {"out": bad_calls.read_only()}, ValueError, "out"),
    ("out in part over gate", partly_over_the_gate, ValueError, "out"),
    ("a stream on the CPU", lambda: {"stream": 1}, ValueError, "stream"),
]


@pytest.mark.parametrize(
    ("call", "expected", "argument"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_calls_say_what_is_wrong(call, expected, argument):
    bad_calls.check(membound.gated_activation, call(), APART, expected, argument)


def test_an_alias_is_named_in_its_errors():
    for op in (membound.silu_and_mul, membound.relu2):
        bad_calls.check(op, {"out": f32(3, 3)}, {"gate": f32()}, ValueError, "out")


def test_no_rows_and_no_axes():
    assert membound.silu_and_mul(np.ones((0, 6), np.float32)).shape == (0, 3)
    assert membound.relu2(np.ones((2, 0, 6), np.float32)).shape == (2, 0, 6)
    with pytest.raises(ValueError, match="'gate'"):
        membound.relu2(np.ones((), np.float32))
    with pytest.raises(ValueError, match="'gate'"):
        membound.silu_and_mul(np.ones((), np.float32))


@pytest.mark.gpu
def test_graph_capture_and_a_chain_of_launches(seed):
    """Each call reads memory that the previous one writes, and must wait for it."""
    torch = arrays.torch_with_cuda()
    generator = torch.Generator("cuda").manual_seed(seed % 2**31)
    x = torch.randn(300, 1000, device="cuda", generator=generator)
    a, b = torch.empty_like(x), torch.empty_like(x)

    def chain():
        membound.gelu_and_mul(x, x, out=a)
        for _ in range(10):
            membound.sigmoid_and_mul(a, x, out=b)
            membound.silu_and_mul_backward(x, b, x, dgate=a, dup=b)

    chain()
    torch.cuda.synchronize()
    right = a.clone(), b.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    a.zero_()
    b.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(a, right[0])
    assert torch.equal(b, right[1])


# Names in model configurations, and torch's functions.
def named(torch):
    functional = torch.nn.functional
    return {
        "swish": lambda g: functional.silu(g),
        "quick_gelu": lambda g: g * (1.702 * g).sigmoid(),
        "gelu_pytorch_tanh": lambda g: functional.gelu(g, approximate="tanh"),
        "gelu_new": lambda g: functional.gelu(g, approximate="tanh"),
        "gelu_fast": lambda g: functional.gelu(g, approximate="tanh"),
        "relu": lambda g: functional.relu(g),
        "relu_squared": lambda g: functional.relu(g) ** 2,
        "situ": lambda g: 4 * (g / 4).tanh() * g.sigmoid(),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "swish",
        "quick_gelu",
        "gelu_pytorch_tanh",
        "gelu_new",
        "gelu_fast",
        "relu",
        "relu_squared",
        "situ",
    ],
)
def test_by_the_names_that_configurations_carry(kind, seed):
    torch = arrays.package("torch")
    mt, functional = pytest.importorskip("membound.torch"), torch.nn.functional
    function = named(torch)[kind]
    generator = torch.Generator().manual_seed(seed % 2**31)
    gate, up = (torch.randn(4, 33, dtype=torch.float64, generator=generator) for _ in range(2))
    factor = 25 * (up / 25).tanh() if kind == "situ" else up
    right = function(gate) * factor
    for found in (
        membound.gated_activation(gate, up, kind=kind),
        mt.gated_activation(gate, up, kind=kind),
        mt.GatedActivation(kind)(torch.cat([gate, up], -1)),
    ):
        torch.testing.assert_close(found, right, rtol=1e-13, atol=1e-15)
    if kind == "situ":
        uncapped = mt.gated_activation(gate, up, kind=kind, limit=math.inf)
        torch.testing.assert_close(uncapped, function(gate) * up)
    weight = torch.randn(5, 33, dtype=torch.float64, generator=generator)
    leaf = gate.clone().requires_grad_()
    mt.gated_linear(leaf, up, weight, kind=kind).sum().backward()
    again = gate.clone().requires_grad_()
    functional.linear(function(again) * factor, weight).sum().backward()
    torch.testing.assert_close(leaf.grad, again.grad, rtol=1e-11, atol=1e-13)
    compiled = torch.compile(lambda g: mt.gated_activation(g, up, kind=kind), backend="eager")
    torch.testing.assert_close(compiled(gate), right, rtol=1e-13, atol=1e-15)
