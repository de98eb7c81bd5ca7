# SPDX-FileCopyrightText: The membound authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of (heads, cols) in every norm and its gradients, against calls per head."""

from __future__ import annotations

from typing import Any

import arrays
import gradients
import numpy as np
import pytest
import reference
from arrays import FRAMEWORKS
from bad_calls import check, f32
from cases import needs
from heads import OPS, SHAPES, Scene, statistics_of, there
from reference import DTYPES

import membound
from membound.oracle import norms


@pytest.fixture(params=OPS)
def op(request):
    return OPS[request.param]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_forward(name, op, dtype, seed):
    """Results are right, and have the bits of a call per head."""
    one = arrays.framework(name)
    needs(one, dtype)
    for shape in SHAPES:
        scene = Scene(op, dtype, shape, seed)
        options = {"weight_offset": 1.0}
        found = op.forward_of(one, there(one, scene.rows), there(one, scene.parameters), **options)
        got = list(map(one.numpy, found))
        wanted = op.formula(*scene.rows, *scene.parameters, dtype, **options)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        if op.centred:
            reference.assert_centred_right(got[0], wanted, tuple(got[-2:]), shape)
        else:
            reference.assert_right(got[0], wanted, got[-1], shape)
        for head in {0, 2, shape[-2] - 1}:
            inputs = (there(one, part) for part in scene.of_head(head))
            alone = op.forward_of(one, *inputs, **options)
            for whole, part in zip(got, alone, strict=True):
                of_rows = whole.ndim == len(shape)
                mine = whole[..., head, :] if of_rows else whole[..., head]
                assert mine.tobytes() == one.numpy(part).tobytes(), (shape, head)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_backward(name, op, dtype, seed):
    """Gradients of rows have the bits of a call per head; those of parameters are right."""
    one = arrays.framework(name)
    needs(one, dtype)
    for shape in SHAPES:
        scene = Scene(op, dtype, shape, seed)
        dy, weight = scene.draw(shape), scene.parameters[0]
        statistics = statistics_of(scene)
        inputs = [dy, *scene.rows, weight, *statistics]
        wanted = op.expected_gradients(dy, scene.rows, weight, *statistics, dtype)
        on_device = there(one, inputs)
        split = len(scene.rows) + 1
        found = op.backward_of(on_device[0], on_device[1:split], *on_device[split:])
        for gradient, right in zip(found, wanted, strict=True):
            reference.assert_within(one.numpy(gradient), right, (shape, op.name))
        for head in {0, 2, shape[-2] - 1}:
            rows = [np.ascontiguousarray(a[..., head, :]) for a in (dy, *scene.rows)]
            rest = [weight[head], *(np.ascontiguousarray(a[..., head]) for a in statistics)]
            rows = there(one, rows)
            alone = op.backward_of(rows[0], rows[1:], *there(one, rest))
            for whole, part in zip(map(one.numpy, found), map(one.numpy, alone), strict=True):
                if whole.ndim == len(shape):
                    assert whole[..., head, :].tobytes() == part.tobytes(), (shape, head)


# --- layouts of arrays, and outputs ---


def views(one: Any, x: np.ndarray) -> dict[str, Any]:
    """The values of (batch, tokens, heads, cols) in other layouts."""
    batch, tokens, heads, cols = x.shape
    found = {"contiguous": one.array(x)}
    if not one.strided:
        return found
    found["heads first"] = one.permute(one.array(x.transpose(0, 2, 1, 3).copy()), [0, 2, 1, 3])
    wide = np.full((batch, tokens, 3 * heads, cols), np.nan, x.dtype)
    wide[:, :, heads : 2 * heads] = x
    found["a part of a projection"] = one.array(wide)[:, :, heads : 2 * heads]
    shifted = np.full((batch, tokens, heads, cols + 3), np.nan, x.dtype)
    shifted[..., 1 : cols + 1] = x
    found["columns, off by one"] = one.array(shifted)[..., 1 : cols + 1]
    found["last axis first"] = one.permute(one.array(x.transpose(3, 0, 1, 2).copy()), [1, 2, 3, 0])
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_layouts_change_no_bit_of_a_row(name, op, dtype, seed):
    one = arrays.framework(name)
    needs(one, dtype)
    if not one.strided:
        pytest.skip("it has no views")
    for cols in (64, 129):
        scene = Scene(op, dtype, (2, 6, 5, cols), seed)
        rows = [views(one, a) for a in scene.rows]
        parameters = there(one, scene.parameters)
        wide = np.repeat(scene.parameters[0], 2, 1)
        strided = [one.array(wide)[:, ::2], *parameters[1:]]
        plain = [row["contiguous"] for row in rows]
        wanted = [one.numpy(a).tobytes() for a in op.forward_of(one, plain, parameters)]
        statistics = there(one, statistics_of(scene))
        dy = views(one, scene.draw(scene.shape))
        whole = op.backward_of(dy["contiguous"], plain, parameters[0], *statistics)
        right = [one.numpy(a).tobytes() for a in whole]
        for layout in rows[0]:
            mine = [row[layout] for row in rows]
            for weights in (parameters, strided):
                got = op.forward_of(one, mine, weights)
                assert [one.numpy(a).tobytes() for a in got] == wanted, (layout, cols)
            found = op.backward_of(dy[layout], mine, strided[0], *statistics)
            assert [one.numpy(a).tobytes() for a in found] == right, (layout, cols)
        if one.takes_out:
            for layout in rows[0]:
                mine = views(one, scene.rows[0])[layout]
                found = op.forward_of(one, [mine, *plain[1:]], parameters, out=mine)
                assert found[0] is mine
                assert one.numpy(mine).tobytes() == wanted[0], (layout, cols)


@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_gradients_of_parameters_into_given_arrays(name, op, seed):
    """Strided, of another dtype, or accumulated."""
    one = arrays.framework(name)
    if not one.takes_out:
        pytest.skip("its arrays cannot be written")
    scene = Scene(op, "float16", (30, 3, 40), seed)
    if "float16" not in one.dtypes:
        pytest.skip("it has no float16")
    dy, statistics = scene.draw(scene.shape), statistics_of(scene)
    weight = scene.parameters[0]
    wanted = op.expected_gradients(dy, scene.rows, weight, *statistics, "float16")
    names = ("dweight", "dbias") if op.centred else ("dweight",)
    sums = dict(zip(names, wanted[-len(names) :], strict=True))
    buffers = {n: one.array(np.full((3, 80), np.nan, np.float32)) for n in sums}
    into = {n: buffer[:, ::2] for n, buffer in buffers.items()}
    inputs = [there(one, [dy])[0], there(one, scene.rows), *there(one, [weight, *statistics])]
    for accumulate in (False, True):
        op.backward_of(*inputs, accumulate=accumulate, **into)
        for n, right in sums.items():
            right.dtype = "float32"
            if accumulate:
                right.add(right.values)
            reference.assert_within(one.numpy(into[n]).copy(), right, (n, accumulate))
            assert np.isnan(one.numpy(buffers[n])[:, 1::2]).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_one_head_is_what_a_plain_weight_gives(name, op, seed):
    one = arrays.framework(name)
    scene = Scene(op, "float32", (7, 1, 96), seed)
    rows = there(one, scene.rows)
    by_head = op.forward_of(one, rows, there(one, scene.parameters))
    plain = op.forward_of(one, rows, there(one, [a[0] for a in scene.parameters]))
    for a, b in zip(by_head, plain, strict=True):
        assert one.numpy(a).tobytes() == one.numpy(b).tobytes()


@pytest.mark.parametrize("name", gradients.FRAMEWORKS)
def test_no_tokens_and_no_heads(name, op):
    one = arrays.framework(name)
    for shape in ((0, 3, 8), (2, 0, 8)):
        scene = Scene(op, "float32", shape, 0)
        rows, parameters = there(one, scene.rows), there(one, scene.parameters)
        out, *_, rstd = op.forward_of(one, rows, parameters)
        assert one.numpy(out).shape == shape
        assert one.numpy(rstd).shape == shape[:-1]
        statistics = there(one, [np.empty(shape[:-1], np.float32)] * op.statistics)
        found = op.backward_of(rows[0], rows, parameters[0], *statistics)
        assert one.numpy(found[0]).shape == shape
        np.testing.assert_array_equal(one.numpy(found[-1]), np.zeros(shape[-2:], np.float32))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_bias_of_each_head_without_a_weight(name, seed):
    one = arrays.framework(name)
    rng = np.random.default_rng(seed)
    x, bias = rng.standard_normal((9, 4, 33)), rng.standard_normal((4, 33))
    got = arrays.call_layer_norm(one, one.array(x), None, one.array(bias), return_stats=True,
                                 normalized_shape=33)  # fmt: skip
    wanted = norms.layer_norm(x, None, bias, "float64")
    y, *statistics = map(one.numpy, got)
    reference.assert_centred_right(y, wanted, tuple(statistics))


def test_the_number_of_threads_changes_nothing(op, seed):
    one = arrays.framework("numpy")
    scene = Scene(op, "float32", (700, 6, 128), seed)
    dy, statistics = scene.draw(scene.shape), statistics_of(scene)

    def bits():
        found = op.forward_of(one, scene.rows, scene.parameters)
        found += op.backward_of(dy, scene.rows, scene.parameters[0], *statistics)
        return [a.tobytes() for a in found]

    try:
        membound.set_cpu_threads(1)
        wanted = bits()
        for threads in (2, 5, 0):
            membound.set_cpu_threads(threads)
            assert bits() == wanted, threads
    finally:
        membound.set_cpu_threads(0)


def test_the_alias_in_place(seed):
    rng = np.random.default_rng(seed)
    x, residual = (rng.standard_normal((5, 3, 64)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal((3, 64)).astype(np.float32)
    wanted = membound.add_rms_norm(x, residual, weight, normalized_shape=64)
    membound.fused_add_rms_norm(x, residual, weight)
    np.testing.assert_array_equal(x, wanted[0])
    np.testing.assert_array_equal(residual, wanted[1])


# --- shapes that do not fit ---

ROWS, STATISTIC = f32(2, 3, 4), np.ones((2, 3), np.float32)
FORWARD = {"x": ROWS, "weight": f32(3, 4)}
BACKWARD = {"dy": ROWS, "x": ROWS, "weight": f32(3, 4), "rstd": STATISTIC}
CENTRED = {**BACKWARD, "mean": STATISTIC}
BAD = {
    "heads of two axes": ("rms_norm", {"x": f32(3, 4), "weight": f32(3, 4)}, "weight"),
    "another number of heads": ("rms_norm", {**FORWARD, "weight": f32(2, 4)}, "weight"),
    "one head for all": ("rms_norm", {**FORWARD, "weight": f32(1, 4)}, "weight"),
    "three axes": ("rms_norm", {**FORWARD, "weight": f32(2, 3, 4)}, "weight"),
    "bias of (cols,)": ("layer_norm", {**FORWARD, "bias": f32(4)}, "bias"),
    "weight of (cols,)": ("layer_norm", {"x": ROWS, "weight": f32(4), "bias": f32(3, 4)}, "bias"),
    "dweight of (cols,)": ("rms_norm_backward", {**BACKWARD, "dweight": f32(4)}, "dweight"),
    "dweight of heads": (
        "rms_norm_backward", {**BACKWARD, "weight": f32(4), "dweight": f32(3, 4)}, "dweight"
    ),
    "dbias of (cols,)": ("layer_norm_backward", {**CENTRED, "dbias": f32(4)}, "dbias"),
    "dbias without a weight": (
        "layer_norm_backward", {**CENTRED, "weight": None, "dbias": f32(3, 4)}, "dbias"
    ),
    "no such heads in the gradient": (
        "rms_norm_backward", {**BACKWARD, "weight": f32(0, 4)}, "weight"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_shapes_that_do_not_fit(case):
    name, call, argument = BAD[case]
    check(getattr(membound, name), call, {"normalized_shape": 4}, ValueError, argument)


# JAX does not write to arrays of the caller.
IN_JAX = [name for name, (_, call, _) in BAD.items() if not {"dweight", "dbias"} & set(call)]


@pytest.mark.parametrize("case", IN_JAX)
def test_they_read_the_same_in_jax(case):
    jax = pytest.importorskip("jax")
    name, call, _ = BAD[case]
    with pytest.raises(ValueError, match=f"^{name}: ") as wanted:
        getattr(membound, name)(**call, normalized_shape=4)
    there = {n: jax.numpy.asarray(a) for n, a in call.items()}
    with pytest.raises(ValueError, match=f"^{name}: ") as got:
        getattr(membound, name)(**there, normalized_shape=4)
    assert str(got.value) == str(wanted.value)
